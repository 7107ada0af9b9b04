#include "collectives/algorithms/two_hop/two_hop.h"

#include <algorithm>

#include "base/check.h"

namespace annulus {
namespace {

// Half of the slots: the other half is for slices that come while these are folded.
int Ahead(const AlgorithmJob& job) { return RoundSlices(job.settings); }

constexpr size_t kPageBytes = 4096;

// The slices that are ahead, as many results, and one more each way.
int Window(const AlgorithmJob& job) { return 2 * Ahead(job) + 2; }

}  // namespace

TwoHop::TwoHop(int rank, const AlgorithmJob& job, const Links* links)
    : asks_(job.settings.algorithm != Algorithm::kTwoHop),
      ahead_(Ahead(job)),
      question_(rank, job.nranks(), links, /*counts=*/false),
      ring_(rank, job, links),
      fold_(rank, job.nranks()) {
  for (int k = 1; k < job.nranks(); ++k) {
    const int peer = (rank + k) % job.nranks();
    endpoints_.push_back(links->At(peer, 0));
    links_.emplace_back(peer, endpoints_.back(), Window(job));
  }
}

size_t TwoHop::MemoryBytes(const AlgorithmJob& job) {
  return sizeof(TwoHop) + kRingRow.memory_bytes(job) +
         static_cast<size_t>(job.nranks()) * (HopLink::MemoryBytes(Window(job)) + sizeof(Endpoint*));
}

void TwoHop::Start(const ScheduleParams& params, const Work* work) {
  params_ = params;
  work_ = work;
  if (!asks_) return StartHops();
  ANNULUS_CHECK(question_.most_bytes() >= sizeof own_answer_);
  stage_ = Stage::kAsks;
  own_answer_ = std::byte{IsRegistered()};
  asking_ = *work;
  asking_.input = ConstBuffer(&own_answer_);
  question_.Start(&asking_, sizeof own_answer_);
}

bool TwoHop::IsRegistered() const {
  const auto n = static_cast<size_t>(params_.nranks);
  const size_t bytes = params_.count * params_.element_bytes;
  bool all = work_->input.queue == nullptr && work_->output.queue == nullptr && !work_->custom.scales;
  all &= IsRegistered(work_->input.data, IsReduceScatter(params_.kind) ? n * bytes : bytes);
  if (IsAllreduce(params_.kind)) all &= IsRegistered(work_->output.data, bytes);
  return all;
}

bool TwoHop::IsRegistered(const std::byte* data, size_t bytes) const {
  const size_t slice = std::min(params_.slice_bytes, bytes);
  // Registered memory consists of whole pages. What cannot be read in place is copied.
  const size_t first = std::min(kPageBytes, (bytes - slice) / 2);
  bool all = true;
  // Each link is asked, whatever the others say: this is also how peers hear what is registered no more.
  for (Endpoint* const endpoint : endpoints_) {
    InPlace* const in_place = endpoint->shortcuts().in_place;
    for (const size_t at : {first, bytes - slice - first}) {
      all &= in_place != nullptr && in_place->SendsFrom(data + at, slice);
    }
  }
  return all;
}

Status TwoHop::Ask(bool* moved) {
  ANNULUS_RETURN_IF_ERROR(question_.Progress(moved));
  const bool has_left = question_.Flush();
  if (!question_.done() || !has_left) return Status();
  bool all = own_answer_ == std::byte{1};
  for (size_t k = 0; k < links_.size(); ++k) all &= *question_.data(k) == std::byte{1};
  question_.PopAll();
  *moved = true;
  if (all) {
    StartHops();
  } else {
    stage_ = Stage::kRing;
    ring_.Start(params_, work_);
  }
  return Status();
}

void TwoHop::StartHops() {
  stage_ = Stage::kHops;
  schedule_ = TwoHopSchedule(params_, ahead_);
  for (HopLink& link : links_) link.Start(&schedule_, work_);
  is_folding_ = false;
  folded_ = 0;
}

Status TwoHop::Advance(bool* moved) {
  if (stage_ == Stage::kAsks) ANNULUS_RETURN_IF_ERROR(Ask(moved));
  if (stage_ == Stage::kHops) return Hop(moved);
  return stage_ == Stage::kRing ? ring_.Progress(moved) : Status();
}

Status TwoHop::Hop(bool* moved) {
  for (HopLink& link : links_) ANNULUS_RETURN_IF_ERROR(link.Receive(moved));
  if (schedule_.folds()) ANNULUS_RETURN_IF_ERROR(Fold(moved));
  bool is_over = true;
  for (HopLink& link : links_) {
    ANNULUS_RETURN_IF_ERROR(link.Send(folded_, moved));
    is_over &= link.done();
  }
  // Others wait for what an allgather sends, and nobody for its copies.
  if (!schedule_.folds()) ANNULUS_RETURN_IF_ERROR(Fold(moved));
  if (!is_over || folded_ < schedule_.size()) return Status();
  stage_ = Stage::kDone;
  *moved = true;
  return Status();
}

Status TwoHop::Fold(bool* moved) {
  while (folded_ < schedule_.size()) {
    Step step;
    const bool is_empty = !schedule_.At(folded_, &step);
    if (!is_empty) {
      if (!is_folding_ && schedule_.folds() && !HasArrived(folded_)) return Status();
      if (!is_folding_) fold_.Start(&schedule_, {folded_, 1}, work_);
      is_folding_ = true;
      ANNULUS_RETURN_IF_ERROR(fold_.Advance(moved));
      if (!fold_.done()) return Status();
      is_folding_ = false;
      for (HopLink& link : links_) ANNULUS_RETURN_IF_ERROR(link.Release(folded_));
    }
    ++folded_;
    *moved = true;
    if (!schedule_.folds()) break;  // One copy at a time: links move in between.
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
  if (stage_ == Stage::kAsks) return question_.WaitsFor(endpoint);
  if (stage_ == Stage::kRing) return ring_.WaitsFor(endpoint);
  const auto found = std::find(endpoints_.begin(), endpoints_.end(), endpoint);
  return found != endpoints_.end() && links_[static_cast<size_t>(found - endpoints_.begin())].waits();
}

int TwoHop::AwaitedPeer() const {
  if (stage_ == Stage::kAsks) return question_.AwaitedPeer();
  if (stage_ == Stage::kRing) return ring_.AwaitedPeer();
  // A result may wait for a third rank; a slice that is to be folded waits for its sender alone.
  const auto first = [this](auto is_awaited) {
    const auto found = std::find_if(links_.begin(), links_.end(), is_awaited);
    return found != links_.end() ? found->peer() : -1;
  };
  int peer = -1;
  if (schedule_.folds() && folded_ < schedule_.size())
    peer = first([this](const HopLink& link) { return link.Arrival(folded_) == nullptr; });
  if (peer < 0) peer = first([](const HopLink& link) { return !link.has_received_all(); });
  return peer >= 0 ? peer : first([](const HopLink& link) { return !link.done(); });
}

}  // namespace annulus
