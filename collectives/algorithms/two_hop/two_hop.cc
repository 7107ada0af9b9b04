#include "collectives/algorithms/two_hop/two_hop.h"

#include <algorithm>

namespace annulus {
namespace {

// Half of the slots: the other half is for slices that come while these are folded.
int Ahead(const AlgorithmJob& job) { return RoundSlices(job.settings); }

// The slices that are ahead, as many results, and one more each way.
int Window(const AlgorithmJob& job) { return 2 * Ahead(job) + 2; }

}  // namespace

TwoHop::TwoHop(int rank, const AlgorithmJob& job, const Links* links) : ahead_(Ahead(job)), fold_(rank, job.nranks()) {
  for (int k = 1; k < job.nranks(); ++k) {
    const int peer = (rank + k) % job.nranks();
    endpoints_.push_back(links->At(peer, 0));
    links_.emplace_back(peer, endpoints_.back(), Window(job));
  }
}

size_t TwoHop::MemoryBytes(const AlgorithmJob& job) {
  return sizeof(TwoHop) + static_cast<size_t>(job.nranks()) * (HopLink::MemoryBytes(Window(job)) + sizeof(Endpoint*));
}

void TwoHop::Start(const ScheduleParams& params, const Work* work) {
  work_ = work;
  schedule_ = TwoHopSchedule(params, ahead_);
  for (HopLink& link : links_) link.Start(&schedule_, work);
  is_folding_ = false;
  folded_ = 0;
  done_ = false;
}

Status TwoHop::Advance(bool* moved) {
  if (done_) return Status();
  for (HopLink& link : links_) ANNULUS_RETURN_IF_ERROR(link.Receive(moved));
  ANNULUS_RETURN_IF_ERROR(Fold(moved));
  bool is_over = folded_ == schedule_.size();
  for (HopLink& link : links_) {
    ANNULUS_RETURN_IF_ERROR(link.Send(folded_, moved));
    is_over &= link.done();
  }
  if (is_over) done_ = *moved = true;
  return Status();
}

Status TwoHop::Fold(bool* moved) {
  while (folded_ < schedule_.size()) {
    Step step;
    const bool is_empty = !schedule_.At(folded_, &step);
    if (!is_empty) {
      if (!is_folding_ && !HasArrived(folded_)) return Status();
      if (!is_folding_) fold_.Start(&schedule_, {folded_, 1}, work_);
      is_folding_ = true;
      ANNULUS_RETURN_IF_ERROR(fold_.Advance(moved));
      if (!fold_.done()) return Status();
      is_folding_ = false;
      for (HopLink& link : links_) ANNULUS_RETURN_IF_ERROR(link.Release(folded_));
    }
    ++folded_;
    *moved = true;
  }
  return Status();
}

bool TwoHop::HasArrived(uint64_t slice) {
  for (size_t k = 0; k < links_.size(); ++k) {
    const HopPeer* const arrival = links_[k].Arrival(slice);
    if (arrival == nullptr) return false;
    fold_.SetArrival(k, arrival->data());
  }
  return true;
}

bool TwoHop::WaitsFor(const Endpoint* endpoint) const {
  const auto found = std::find(endpoints_.begin(), endpoints_.end(), endpoint);
  return found != endpoints_.end() && links_[static_cast<size_t>(found - endpoints_.begin())].waits();
}

int TwoHop::AwaitedPeer() const {
  // A result may wait for a third rank; a slice that is to be folded waits for its sender alone.
  const auto first = [this](auto is_awaited) {
    const auto found = std::find_if(links_.begin(), links_.end(), is_awaited);
    return found != links_.end() ? found->peer() : -1;
  };
  int peer = -1;
  if (folded_ < schedule_.size())
    peer = first([this](const HopLink& link) { return link.Arrival(folded_) == nullptr; });
  if (peer < 0) peer = first([](const HopLink& link) { return !link.has_received_all(); });
  return peer >= 0 ? peer : first([](const HopLink& link) { return !link.done(); });
}

}  // namespace annulus
