#include "collectives/cuda/mapped/cuda_pieces.h"

#include <algorithm>
#include <string>
#include <utility>

namespace annulus {
namespace {

bool IsSame(const CudaPieces::Piece& a, const CudaPieces::Piece& b) {
  return a.begin == b.begin && a.bytes == b.bytes && a.handle == b.handle;
}

}  // namespace

// Nothing is to be done about an error: the context is gone, and all that was in it.
CudaPieces::Run::~Run() {
  const cuda::Driver& driver = device_.driver();
  const DeviceScope scope(device_);
  if (!scope.status().ok()) return;
  for (const Piece& piece : pieces_) driver->MemRelease(piece.handle);
}

Status CudaPieces::Run::Export(FileLetter* letter) const {
  const cuda::Driver& driver = device_.driver();
  const cuda::ScopedContext scope(driver, device_.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  for (const Piece& piece : pieces_) {
    letter->files.reserve(letter->files.size() + 1);
    int file = -1;
    ANNULUS_RETURN_IF_ERROR(
        driver.ToStatus(driver->MemExportToShareableHandle(&file, piece.handle, cuda::ShareableHandle::kFile, 0),
                        "cuMemExportToShareableHandle"));
    letter->files.push_back(file);
    letter->pieces.push_back({piece.bytes, piece.id});
  }
  return Status();
}

Status CudaPieces::Run::MapFor(const CudaDevice& device, std::byte** begin) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Mapped& mapped = mapped_[&device];
  if (mapped.range == nullptr) {
    if (!mapped.retries.MayTry()) return {Code::kUnsupported, "it could not be mapped for that GPU before"};
    const Status status = Map(device, &mapped.range);
    if (!status.ok()) mapped.retries.Failed();
    ANNULUS_RETURN_IF_ERROR(status);
  }
  *begin = mapped.range->begin();
  return Status();
}

Status CudaPieces::Run::Map(const CudaDevice& device, std::unique_ptr<VirtualRange>* mapped) const {
  const cuda::ScopedContext scope(device.driver(), device.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  auto range = std::make_unique<VirtualRange>(device);
  ANNULUS_RETURN_IF_ERROR(range->Reserve(bytes()));
  for (const Piece& piece : pieces_) ANNULUS_RETURN_IF_ERROR(range->Add(piece.handle, piece.bytes));
  ANNULUS_RETURN_IF_ERROR(range->Open());
  *mapped = std::move(range);
  return Status();
}

Status CudaPieces::Hold(const std::byte* memory, size_t bytes, Run* run) {
  const cuda::Driver& driver = run->device_.driver();
  const cuda::DevicePointer end = cuda::ToDevice(memory) + bytes;
  for (cuda::DevicePointer next = cuda::ToDevice(memory); next < end;) {
    if (run->pieces_.size() == kMostFiles)
      return {Code::kUnsupported, "a buffer lies in more than " + std::to_string(kMostFiles) + " pieces of memory"};
    run->pieces_.reserve(run->pieces_.size() + 1);
    Piece piece;
    ANNULUS_RETURN_IF_ERROR(
        driver.ToStatus(driver->MemGetAddressRange(&piece.begin, &piece.bytes, next), "cuMemGetAddressRange"));
    const bool is_side_by_side = run->pieces_.empty() ? piece.begin <= next : piece.begin == next;
    if (!is_side_by_side || piece.bytes <= next - piece.begin)
      return {Code::kUnsupported, "the driver does not tell in which pieces of memory a buffer lies"};
    ANNULUS_RETURN_IF_ERROR(driver.ToStatus(
        driver->MemRetainAllocationHandle(&piece.handle, cuda::FromDevice<void>(next)), "cuMemRetainAllocationHandle"));
    run->pieces_.push_back(piece);
    next = piece.begin + piece.bytes;
  }
  return run->pieces_.empty() ? Status(Code::kUnsupported, "an empty buffer") : Status();
}

Status CudaPieces::Find(const CudaDevice& device, const std::byte* memory, size_t bytes,
                        std::shared_ptr<const Run>* run) {
  auto fresh = std::make_shared<Run>(device, 0);  // Before the lock: what is not needed is released after it.
  {
    const cuda::ScopedContext scope(device.driver(), device.context());
    ANNULUS_RETURN_IF_ERROR(scope.status());
    ANNULUS_RETURN_IF_ERROR(Hold(memory, bytes, fresh.get()));
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Handles that are held, here by both, are the same memory when they are the same number.
    const auto is_it = [&](const auto& each) { return std::ranges::equal(each->pieces(), fresh->pieces(), IsSame); };
    const auto found = std::ranges::find_if(runs_, is_it);
    if (found != runs_.end()) {
      std::rotate(found, found + 1, runs_.end());
      *run = runs_.back();
      return Status();
    }
    Number(fresh.get());
    runs_.push_back(fresh);
  }
  Sweep(device, fresh.get());
  *run = std::move(fresh);
  return Status();
}

void CudaPieces::Number(Run* run) {
  for (Piece& piece : run->pieces_) {
    for (const auto& other : runs_) {
      const auto known = std::ranges::find_if(other->pieces(), [&](const Piece& each) { return IsSame(each, piece); });
      if (known != other->pieces().end()) piece.id = known->id;
    }
    if (piece.id == 0) piece.id = ++last_;
  }
  run->number_ = ++last_;
}

// Whoever looks at what others have found may find that it has changed since; then they have found that as well.
void CudaPieces::Sweep(const CudaDevice& device, const Run* fresh) {
  Runs looked_at;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    looked_at = runs_;
  }
  const cuda::Driver& driver = device.driver();
  const auto is_there = [&](const Piece& piece) {
    cuda::AllocationHandle now = 0;
    if (driver->MemRetainAllocationHandle(&now, cuda::FromDevice<void>(piece.begin)) != cuda::Result::kSuccess)
      return false;
    driver->MemRelease(now);
    return now == piece.handle;
  };
  Runs gone;  // Their handles are given back without the lock.
  const cuda::ScopedContext scope(driver, device.context());
  if (!scope.status().ok()) return;
  for (const auto& run : looked_at) {
    if (run.get() != fresh && !std::ranges::all_of(run->pieces(), is_there)) gone.push_back(run);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(runs_, [&](const auto& run) { return std::ranges::find(gone, run) != gone.end(); });
  for (; runs_.size() > kMostRuns; runs_.erase(runs_.begin())) gone.push_back(runs_.front());
}

std::shared_ptr<const CudaPieces::Run> CudaPieces::At(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto is_it = [number](const auto& run) { return run->number() == number; };
  const auto found = std::ranges::find_if(runs_, is_it);
  return found != runs_.end() ? *found : nullptr;
}

void CudaPieces::Clear() {
  Runs leaving;  // Outlives the lock.
  const std::lock_guard<std::mutex> lock(mutex_);
  leaving.swap(runs_);
}

}  // namespace annulus
