// Fuzz target: what a control connection brings may be anything, to rank 0 or to another rank. It ends in a verdict or
// in none, never in a message that is half understood; and rank 0 blames only ranks that exist.
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/check.h"
#include "collectives/control/control_activity.h"
#include "collectives/control/control_connections.h"
#include "collectives/control/control_judge.h"
#include "collectives/control/control_member.h"
#include "collectives/control/sockets/socket_net.h"
#include "collectives/control/verdict.h"

namespace annulus {
namespace {

constexpr int kRanks = 3;
constexpr size_t kMaxInput = 32 * 1024;  // Less than a socket takes at once.

std::string Encode(const Verdict& verdict) {
  ByteWriter out;
  WriteVerdict(verdict, &out);
  return out.bytes();
}

void CheckVerdict(const Verdict& verdict) {
  ANNULUS_CHECK(verdict.code >= Code::kInvalidArgument && verdict.code <= Code::kInternal);
  for (int rank : {verdict.rank, verdict.peer}) ANNULUS_CHECK(rank >= Status::kNoRank && rank < kRanks);
  const std::string bytes = Encode(verdict);
  ByteReader in(std::as_bytes(std::span(bytes)));
  Verdict again;
  ANNULUS_CHECK(ReadVerdict(&in, &again) && in.done() && Encode(again) == bytes);
}

// The other ends of a role's connections, by rank.
struct Ends {
  ~Ends() {
    for (int fd : fds) {
      if (fd >= 0) ::close(fd);
    }
  }
  int Connect(int rank) {
    int pair[2];
    ANNULUS_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    fds[rank] = pair[0];
    return pair[1];
  }
  int fds[kRanks] = {-1, -1, -1};
};

}  // namespace
}  // namespace annulus

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace annulus;
  if (size < 1 || size > kMaxInput) return 0;
  const bool judges = (data[0] & 1) != 0;
  const int speaker = judges ? 1 : 0;
  asio::io_context context;
  SocketNet net(&context, "", {});
  ActivityRecorder activity;
  std::optional<Verdict> verdict;
  ControlRoleConfig config;
  config.rank = judges ? 0 : 1;
  config.nranks = kRanks;
  config.net = &net;
  config.activity = &activity;
  config.conclude = [&](const Verdict& given) {
    if (!verdict) verdict = given;
  };
  Ends ends;
  ControlConnections connections;
  connections.Put(speaker, ends.Connect(speaker));
  if (judges) connections.Put(2, ends.Connect(2));  // It stays silent.
  std::unique_ptr<ControlRole> role;
  if (judges) role = std::make_unique<ControlJudge>(config);
  if (!judges) role = std::make_unique<ControlMember>(config);
  ANNULUS_CHECK(role->Open(std::move(connections)).ok());
  ANNULUS_CHECK(::send(ends.fds[speaker], data + 1, size - 1, MSG_NOSIGNAL) == static_cast<ssize_t>(size - 1));
  ::shutdown(ends.fds[speaker], SHUT_WR);
  while (context.poll() > 0) context.restart();
  if (verdict) CheckVerdict(*verdict);
  return 0;
}
