#include "collectives/engine.h"

#include <algorithm>

#include "base/check.h"

namespace annulus {
namespace {

bool HasType(CollectiveKind kind) { return kind != CollectiveKind::kBarrier; }

}  // namespace

std::vector<NeededLink> LinksNeeded(int rank, int nranks, const PlanSettings& settings) {
  std::vector<NeededLink> needed;
  if (nranks == 1) return needed;
  const int prev = (rank + nranks - 1) % nranks;
  const int next = (rank + 1) % nranks;
  const bool mesh = nranks <= kMaxOneHopRanks;
  for (int channel = 0; channel < settings.channels; ++channel) {
    for (int peer = 0; peer < nranks; ++peer) {
      const bool neighbour = peer == prev || peer == next;
      if (peer != rank && (neighbour || (mesh && channel == 0))) needed.push_back({peer, channel});
    }
  }
  return needed;
}

Engine::Engine(int rank, int nranks, const PlanSettings& settings, const Links* links)
    : rank_(rank), nranks_(nranks), settings_(settings), links_(links) {
  for (int channel = 0; channel < settings.channels; ++channel) pipelines_.emplace_back(channel, WindowSteps(settings));
  if (nranks == 1) return;
  const int prev = (rank + nranks - 1) % nranks;
  const int next = (rank + 1) % nranks;
  for (int channel = 0; channel < settings.channels; ++channel) {
    ring_endpoints_.push_back(links->At(prev, channel));
    if (next != prev) ring_endpoints_.push_back(links->At(next, channel));
  }
  for (int peer = 0; peer < nranks && nranks <= kMaxOneHopRanks; ++peer) {
    if (peer != rank) one_hop_endpoints_.push_back(links->At(peer, 0));
  }
}

void Engine::Start(const Call& call, const void* input, void* output, Device* device) {
  ANNULUS_CHECK(done());
  work_.call = call;
  work_.input = static_cast<const std::byte*>(input);
  work_.output = static_cast<std::byte*>(output);
  work_.type = call.type;
  work_.element_bytes = HasType(call.kind) ? TypeBytes(call.type) : 1;
  work_.op = call.op;
  work_.divisor = call.op == ReduceOp::kAvg && nranks_ > 1 ? nranks_ : 0;
  work_.rank = rank_;
  work_.nranks = nranks_;
  work_.device = device;
  work_.links = links_;
  const ScheduleParams params = MakePlan(call, work_.element_bytes, rank_, nranks_, settings_);
  endpoints_ = params.algorithm == Algorithm::kOneHop ? &one_hop_endpoints_ : &ring_endpoints_;
  pipelines_left_ = static_cast<int>(pipelines_.size());
  for (int channel = 0; channel < settings_.channels; ++channel)
    pipelines_[channel].Start(Schedule(params, channel), &work_);
}

Status Engine::Progress(bool* moved) {
  Status link_error;
  for (Endpoint* endpoint : *endpoints_) {
    Status status = endpoint->Progress(moved);
    if (status.ok() || !link_error.ok()) continue;
    // A rank that has done its part may leave while others still wait for a third one; its link fails only those who
    // still need it: now what they posted there, later what they try to post.
    if (status.code() != Code::kPeerLost || WaitsFor(endpoint)) link_error = std::move(status);
  }
  // A slice that breaks its link may also tell why: a mismatched call says more than "frame too long".
  pipelines_left_ = 0;
  for (Pipeline& pipeline : pipelines_) {
    Status status = pipeline.Advance(moved);
    if (status.code() == Code::kMismatch) return status;
    if (!status.ok() && link_error.ok()) link_error = std::move(status);
    if (!pipeline.done()) ++pipelines_left_;
  }
  // A peer that has left after its last slice does not fail a collective that is complete.
  return done() ? Status() : link_error;
}

bool Engine::WaitsFor(const Endpoint* endpoint) const {
  for (const Pipeline& pipeline : pipelines_) {
    if (pipeline.WaitsFor(endpoint)) return true;
  }
  return false;
}

bool Engine::Arm() {
  for (const Pipeline& pipeline : pipelines_) {
    if (pipeline.waits_for_device()) return false;
  }
  bool armed = true;
  for (Endpoint* endpoint : *endpoints_) {
    if (endpoint->Arm()) continue;
    // A link that is lost and that nobody waits for has nothing to keep us awake for.
    bool moved = false;
    if (WaitsFor(endpoint) || endpoint->Progress(&moved).ok()) armed = false;
  }
  return armed;
}

}  // namespace annulus
