#include "collectives/algorithms/runner.h"

#include <utility>

namespace annulus {

Status Runner::ProgressLinks(bool* moved) {
  Status link_error;
  for (Endpoint* endpoint : endpoints()) {
    Status status = endpoint->Progress(moved);
    if (status.ok() || !link_error.ok()) continue;
    // A rank that has done its part may leave while others still wait for a third one. Its link fails only those that
    // still need it: now for what they posted there, later for what they try to post.
    if (status.code() != Code::kPeerLost || WaitsFor(endpoint)) link_error = std::move(status);
  }
  return link_error;
}

Status Runner::Progress(bool* moved) {
  Status link_error = ProgressLinks(moved);
  Status status = Advance(moved);
  // A slice that breaks its link may also give the reason: a mismatched call says more than "frame too long".
  if (status.code() == Code::kMismatch || link_error.ok()) link_error = std::move(status);
  // A peer that has left after its last slice does not fail a collective that is complete.
  return done() && link_error.code() != Code::kMismatch ? Status() : link_error;
}

bool Runner::Arm() {
  bool armed = true;
  for (Endpoint* endpoint : endpoints()) {
    if (endpoint->Arm()) continue;
    // A lost link for which nobody waits is no reason to stay awake.
    bool moved = false;
    if (WaitsFor(endpoint) || endpoint->Progress(&moved).ok()) armed = false;
  }
  return armed;
}

}  // namespace annulus
