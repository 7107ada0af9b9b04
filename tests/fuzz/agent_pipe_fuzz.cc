// Fuzz target: what annulus-run and its agents read from each other may be anything. Messages come out whole or not at
// all, and an order that is accepted is encoded to the same bytes again.
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "launcher/remote/agent_pipe.h"
#include "launcher/remote/start_order.h"

namespace annulus {
namespace {

constexpr size_t kMaxInput = 48 * 1024;  // Less than a pipe takes at once.

void CheckContent(const AgentMessage& message) {
  StartOrder order;
  if (!Decode(message.content, &order)) return;
  ANNULUS_CHECK(order.nranks >= 1 && order.first_rank >= 0 && order.first_rank + order.nranks <= order.size);
  ANNULUS_CHECK(!order.command.empty());
  StartOrder again;
  ANNULUS_CHECK(Decode(Encode(order), &again) && Encode(again) == Encode(order));
}

}  // namespace
}  // namespace annulus

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace annulus;
  if (size < 1 || size > kMaxInput) return 0;
  const auto side = (data[0] & 1) != 0 ? AgentPipe::Side::kAgent : AgentPipe::Side::kHead;
  // Random bytes hardly ever greet.
  std::string input = (data[0] & 2) != 0 ? "noise\nannulus-run agent 3\n" : "";
  input.append(reinterpret_cast<const char*>(data) + 1, size - 1);
  int ends[2];
  ANNULUS_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  ANNULUS_CHECK(write(ends[1], input.data(), input.size()) == static_cast<ssize_t>(input.size()));
  close(ends[1]);
  AgentPipe pipe(side, ends[0], open("/dev/null", O_WRONLY | O_CLOEXEC));
  size_t accepted = 0;
  while (pipe.in_fd() >= 0) {
    pipe.ReadSome();
    while (const auto message = pipe.Next()) {
      accepted += message->content.size();
      CheckContent(*message);
    }
  }
  ANNULUS_CHECK(accepted <= input.size() && pipe.state() != AgentPipe::State::kOpen);
  return 0;
}
