#include "transport/closing.h"

#include <poll.h>

namespace annulus {
namespace {

// Pause between two checks: acknowledgements raise no event.
constexpr int kPauseMs = 1;

// Calls Close() once on each. Returns whether all are closed but those to `lost`.
bool CloseOnce(std::span<const std::unique_ptr<Endpoint>> endpoints, int lost) {
  bool closed = true;
  for (const auto& endpoint : endpoints) {
    if (endpoint != nullptr && !endpoint->Close() && endpoint->peer() != lost) closed = false;
  }
  return closed;
}

}  // namespace

void CloseEndpoints(std::span<const std::unique_ptr<Endpoint>> endpoints, int lost, Deadline until) {
  while (!CloseOnce(endpoints, lost) && Now() < until) poll(nullptr, 0, kPauseMs);
}

}  // namespace annulus
