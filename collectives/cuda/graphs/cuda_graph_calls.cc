#include "collectives/cuda/graphs/cuda_graph_calls.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

namespace annulus {

size_t CudaGraphCalls::Bytes() const {
  size_t bytes = pinning_;
  for (const Place& place : places_) bytes += place.call->memory_bytes();
  return bytes;
}

// The smallest that suffices.
CudaGraphCalls::Place* CudaGraphCalls::FindFree(const CudaDevice& device, size_t bytes) {
  Place* best = nullptr;
  for (Place& place : places_) {
    const CudaGraphCall& call = *place.call;
    if (place.is_used || !call.IsFree() || &call.device() != &device || call.staging_bytes() < bytes) continue;
    if (best == nullptr || call.staging_bytes() < best->call->staging_bytes()) best = &place;
  }
  return best;
}

Status CudaGraphCalls::Acquire(const CudaDevice& device, size_t bytes, size_t most_bytes,
                               const std::shared_ptr<GraphBell>& bell, CudaGraphCall** call) {
  ANNULUS_RETURN_IF_ERROR(CudaGraphCall::Check(device));
  std::vector<Place> unused;  // Freed without the lock.
  const size_t wanted = CudaGraphCall::PinnedBytes(bytes);
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (is_open_) return Status(Code::kAborted, "the communicator has ended");
    if (Place* const free = FindFree(device, bytes); free != nullptr) {
      free->is_used = true;
      *call = free->call.get();
      (*call)->BeginAnew(bell);
      return Status();
    }
    if (wanted > most_bytes || Bytes() > most_bytes - wanted) {
      const auto is_used = [](const Place& place) { return place.is_used || !place.call->IsFree(); };
      const auto rest = std::stable_partition(places_.begin(), places_.end(), is_used);
      std::move(rest, places_.end(), std::back_inserter(unused));
      places_.erase(rest, places_.end());
    }
    if (wanted > most_bytes || Bytes() > most_bytes - wanted) {
      return {Code::kOutOfMemory, "a call in a graph needs " + std::to_string(wanted) +
                                      " bytes of pinned memory, more than memory_bytes (ANNULUS_MEMORY_BYTES) leaves"};
    }
    pinning_ += wanted;
  }
  unused.clear();
  Place made;
  Status opened;
  try {
    opened = CudaGraphCall::Open(device, bytes, bell, &made.call);
  } catch (const std::bad_alloc&) {
    opened = Status(Code::kOutOfMemory);
  }
  const std::lock_guard<std::mutex> lock(mu_);
  pinning_ -= wanted;
  ANNULUS_RETURN_IF_ERROR(std::move(opened));
  *call = made.call.get();
  places_.push_back(std::move(made));
  return Status();
}

Status CudaGraphCalls::Record(cuda::Stream user, cuda::Graph graph, CudaGraphCall* call) {
  const Status recorded = call->Record(user, graph);
  const std::lock_guard<std::mutex> lock(mu_);
  if (is_open_) call->End();
  return recorded;
}

void CudaGraphCalls::Recycle(const GraphCall* call) {
  const std::lock_guard<std::mutex> lock(mu_);
  for (Place& place : places_) {
    if (place.call.get() == call) place.is_used = false;
  }
}

void CudaGraphCalls::OpenAll() {
  const std::lock_guard<std::mutex> lock(mu_);
  is_open_ = true;
  for (const Place& place : places_) place.call->End();
}

void CudaGraphCalls::OpenAllNow() {
  const std::lock_guard<std::mutex> lock(mu_);
  is_open_ = true;
  for (const Place& place : places_) place.call->OpenForGood();
}

size_t CudaGraphCalls::MemoryBytes() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return Bytes();
}

std::vector<std::unique_ptr<CudaGraphCall>> CudaGraphCalls::TakeAll() {
  OpenAllNow();
  const std::lock_guard<std::mutex> lock(mu_);
  std::vector<std::unique_ptr<CudaGraphCall>> calls;
  for (Place& place : places_) calls.push_back(std::move(place.call));
  places_.clear();
  return calls;
}

}  // namespace annulus
