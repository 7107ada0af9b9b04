#include "collectives/cuda/cuda_queue.h"

#include <algorithm>
#include <new>
#include <utility>

#include "collectives/cuda/cuda_domain.h"

namespace annulus {

CudaQueue::CudaQueue(CudaDomain* domain, ReduceOn on)
    : DomainQueue(MemoryKind::kDevice),
      domain_(domain),
      on_(on),
      places_(domain->driver(), domain->slots(),
              [domain](int device, const std::byte* memory, size_t bytes) {
                return domain->windows().Has(device, memory, bytes);
              }),
      sharing_(domain, on) {}

CudaQueue::~CudaQueue() = default;

CudaQueue::Prepared* CudaQueue::FindPrepared(int number) {
  const auto is_it = [number](const Prepared& each) { return each.device->ordinal() == number; };
  const auto found = std::ranges::find_if(prepared_, is_it);
  return found != prepared_.end() ? &*found : nullptr;
}

bool CudaQueue::IsPreparedFor(const CudaDevice& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Prepared* const found = FindPrepared(device.ordinal());
  return found != nullptr && found->device == &device && (found->is_taken || found->streams != nullptr);
}

Status CudaQueue::Check() {
  for (size_t i = 0;; ++i) {
    const CudaDevice* device = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (i == prepared_.size()) return Status();
      device = prepared_[i].device;
    }
    if (device->IsReset()) return device->WhyReset();
    domain_->KeepPinned(*device);
  }
}

void CudaQueue::Prepare(const CudaDevice& device) {
  std::unique_lock<std::mutex> lock(mutex_);
  Prepared* const found = FindPrepared(device.ordinal());
  Prepared& prepared = found != nullptr ? *found : prepared_.emplace_back();
  if (found == nullptr) prepared.device = &device;
  if (prepared.device != &device) return;  // It was reset: Check tells.
  opened_.wait(lock, [&prepared] { return !prepared.is_being_opened; });
  if (prepared.is_taken || prepared.streams != nullptr) return;
  prepared.is_being_opened = true;
  lock.unlock();
  std::unique_ptr<CudaStreams> streams;
  Status status;
  try {
    status = CudaStreams::Open(device, &streams);
  } catch (const std::bad_alloc&) {
    status = Status(Code::kOutOfMemory);
  }
  lock.lock();
  prepared.streams = std::move(streams);
  prepared.status = std::move(status);
  prepared.is_being_opened = false;
  opened_.notify_all();
}

Status CudaQueue::ClaimStreams(int number, std::unique_ptr<CudaStreams>* streams) {
  const CudaDevice* device = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain_->Use(number, &device));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Prepared* const found = FindPrepared(number);
    if (found != nullptr && found->device != device) return found->device->WhyReset();
    // While a later call tries again, what has failed stays so for those before it.
    if (found != nullptr && (found->streams != nullptr || !found->status.ok())) {
      found->is_taken = true;
      *streams = std::move(found->streams);
      return found->status;
    }
  }
  // No buffer of a call lies there.
  return CudaStreams::Open(*device, streams);
}

int CudaQueue::AnyGpu() {
  if (!works_.empty()) return works_.front().first;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto is_ready = [](const Prepared& each) { return each.streams != nullptr; };
  const auto found = std::ranges::find_if(prepared_, is_ready);
  if (found != prepared_.end()) return found->device->ordinal();
  return prepared_.empty() ? 0 : prepared_.front().device->ordinal();
}

Status CudaQueue::FindWork(const SliceOp& op, size_t* index) {
  if (op.device < 0) ANNULUS_RETURN_IF_ERROR(places_.Find(op));
  const int found_device = op.device < 0 ? places_.device() : op.device;
  // Operations reach a queue only after a buffer was found on a GPU. If none of this one is, any GPU will do.
  const int number = found_device < 0 ? AnyGpu() : found_device;
  const auto found =
      std::find_if(works_.begin(), works_.end(), [number](const auto& work) { return work.first == number; });
  *index = static_cast<size_t>(found - works_.begin());
  if (found != works_.end()) return Status();
  std::unique_ptr<CudaStreams> streams;
  ANNULUS_RETURN_IF_ERROR(ClaimStreams(number, &streams));
  works_.emplace_back(number, std::make_unique<CudaWork>(std::move(streams), on_));
  return op.device < 0 ? places_.Find(op) : Status();  // The slots are pinned now.
}

Status CudaQueue::SubmitAsync(const SliceOp& op, Ticket* ticket) {
  if (!error_.ok()) return error_;
  // Most often there is one GPU: then the driver need not be asked where the operands lie.
  if (works_.size() == 1 && works_.front().second->is_full()) return Status::WouldBlock();
  size_t index = 0;
  error_ = FindWork(op, &index);
  if (!error_.ok()) return error_;
  ANNULUS_RETURN_IF_ERROR(works_[index].second->Submit(op, places_, ticket));
  *ticket = *ticket * kMostGpus + index;
  return Status();
}

Status CudaQueue::PollAsync(Ticket ticket, bool* done) {
  *done = false;
  if (!error_.ok()) return error_;
  return works_[ticket % kMostGpus].second->Poll(ticket / kMostGpus, done);
}

void CudaQueue::Drain() {
  for (const auto& [number, work] : works_) work->Drain();
}

}  // namespace annulus
