#include "collectives/cuda/mapped/cuda_mappings.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace annulus {
namespace {

bool IsSameAllocation(const SharedPlace& a, const SharedPlace& b) {
  return a.process == b.process && a.begin == b.begin && a.bytes == b.bytes &&
         std::memcmp(a.handle, b.handle, sizeof a.handle) == 0;
}

// Whether a process can have only one of them.
bool Overlap(const SharedPlace& a, const SharedPlace& b) {
  return a.process == b.process && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

// Whether one of them has a piece at addresses where the other has something else.
bool HaveOther(const SharedPlace& a, std::span<const FilePiece> left, const SharedPlace& b,
               std::span<const FilePiece> right) {
  uint64_t left_begin = a.begin;
  uint64_t right_begin = b.begin;
  while (!left.empty() && !right.empty()) {
    const uint64_t left_end = left_begin + left.front().bytes;
    const uint64_t right_end = right_begin + right.front().bytes;
    const bool is_same = left_begin == right_begin && left.front().id == right.front().id;
    if (!is_same && left_begin < right_end && right_begin < left_end) return true;
    if (left_end <= right_end) left = left.subspan(1), left_begin = left_end;
    if (right_end <= left_end) right = right.subspan(1), right_begin = right_end;
  }
  return false;
}

}  // namespace

Status CudaMappings::OpenFiles(Mapping* mapping, const FileLetter& letter) {
  const CudaDevice& device = *mapping->device;
  const cuda::Driver& driver = device.driver();
  auto range = std::make_unique<VirtualRange>(device);
  ANNULUS_RETURN_IF_ERROR(range->Reserve(mapping->place.bytes));
  for (size_t i = 0; i < letter.files.size(); ++i) {
    cuda::AllocationHandle handle = 0;
    void* const file = cuda::FromDevice<void>(static_cast<cuda::DevicePointer>(letter.files[i]));
    ANNULUS_RETURN_IF_ERROR(
        driver.ToStatus(driver->MemImportFromShareableHandle(&handle, file, cuda::ShareableHandle::kFile),
                        "cuMemImportFromShareableHandle"));
    Status added = range->Add(handle, letter.pieces[i].bytes);
    driver->MemRelease(handle);
    ANNULUS_RETURN_IF_ERROR(std::move(added));
  }
  ANNULUS_RETURN_IF_ERROR(range->Open());
  mapping->begin = range->begin();
  mapping->range = std::move(range);
  return Status();
}

Status CudaMappings::Open(Mapping* mapping, const FileLetter* letter) {
  const CudaDevice& device = *mapping->device;
  cuda::IpcMemHandle handle;
  static_assert(sizeof handle.bytes == sizeof mapping->place.handle);
  std::memcpy(handle.bytes, mapping->place.handle, sizeof mapping->place.handle);
  const cuda::Driver& driver = device.driver();
  const cuda::ScopedContext scope(driver, device.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  if (letter != nullptr) return OpenFiles(mapping, *letter);
  cuda::DevicePointer memory = 0;
  ANNULUS_RETURN_IF_ERROR(
      driver.ToStatus(driver->IpcOpenMemHandle(&memory, handle, cuda::kIpcLazyPeerAccess), "cuIpcOpenMemHandle"));
  mapping->begin = cuda::FromDevice(memory);
  return Status();
}

// Nothing is to be done about an error.
void CudaMappings::Close(Mapping* mapping) {
  if (mapping->range != nullptr) return mapping->range.reset();
  const cuda::Driver& driver = mapping->device->driver();
  const DeviceScope scope(*mapping->device);
  if (scope.status().ok()) driver->IpcCloseMemHandle(cuda::ToDevice(mapping->begin));
}

// What a letter says is not relied on: its sizes must add up to what the place says, and the driver maps no piece
// beyond its end.
Status CudaMappings::CheckLetter(const SharedPlace& place, const FileLetter* letter) {
  const auto is_place = [&](const Refused& each) { return IsSameAllocation(each.place, place); };
  const auto refused = std::ranges::find_if(refused_, is_place);
  if (refused != refused_.end() && !refused->retries.MayTry())
    return {Code::kUnsupported, "its descriptors could not be mapped before"};
  uint64_t run = 0;
  std::memcpy(&run, place.handle, sizeof run);
  if (letter == nullptr || letter->process != place.process || letter->run != run) return Status::WouldBlock();
  uint64_t left = place.bytes;
  for (const FilePiece& piece : letter->pieces) {
    if (piece.bytes == 0 || piece.bytes > left) return Status::Invalid("a rank's pieces of memory do not add up");
    left -= piece.bytes;
  }
  if (left != 0 || place.files != letter->pieces.size() || place.begin + place.bytes < place.begin)
    return Status::Invalid("a rank's pieces of memory do not add up");
  return Status();
}

void CudaMappings::NoteOutcome(const SharedPlace& place, bool is_mapped) {
  const auto is_place = [&](const Refused& each) { return IsSameAllocation(each.place, place); };
  auto refused = std::ranges::find_if(refused_, is_place);
  if (is_mapped) {
    if (refused != refused_.end()) refused_.erase(refused);
    return;
  }
  if (refused == refused_.end()) refused = refused_.insert(refused, Refused{place, {}});
  refused->retries.Failed();
  if (refused_.size() > kMostRefused) refused_.erase(refused_.begin());
}

Status CudaMappings::Hold(const CudaDevice& device, const SharedPlace& place, const FileLetter* letter,
                          std::byte** begin) {
  *begin = nullptr;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_unsettled = [&](const Mapping& each) { return each.is_changing && Overlap(each.place, place); };
  changed_.wait(lock, [&] { return std::ranges::none_of(mappings_, is_unsettled); });
  const auto is_it = [&](const Mapping& each) { return each.device == &device && IsSameAllocation(each.place, place); };
  const auto found = std::ranges::find_if(mappings_, is_it);
  if (found != mappings_.end()) {
    ++found->users;
    found->used = ++holds_;
    *begin = found->begin;
    return Status();
  }
  if (place.files == 0) letter = nullptr;
  if (place.files > 0) ANNULUS_RETURN_IF_ERROR(CheckLetter(place, letter));
  Mappings fresh;  // From here to the end nothing may fail for lack of memory: others wait for what is changing.
  refused_.reserve(kMostRefused + 1);
  const auto made = fresh.insert(fresh.end(), Mapping{place, &device, nullptr, 1, ++holds_, true});
  if (letter != nullptr) made->pieces = letter->pieces;
  const Leaving leaving = MakeRoom(*made);
  mappings_.splice(mappings_.end(), fresh);
  lock.unlock();
  for (const auto& each : leaving) Close(&*each);
  Status opened;
  try {
    opened = Open(&*made, letter);
  } catch (const std::bad_alloc&) {
    opened = Status(Code::kOutOfMemory);
  }
  lock.lock();
  Erase(leaving);
  *begin = made->begin;
  made->is_changing = false;
  if (letter != nullptr) NoteOutcome(place, opened.ok());
  if (!opened.ok()) mappings_.erase(made);
  changed_.notify_all();
  return opened;
}

void CudaMappings::Release(const CudaDevice& device, const std::byte* begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto is_it = [&](const Mapping& each) { return each.device == &device && each.begin == begin; };
  const auto found = std::ranges::find_if(mappings_, is_it);
  if (found != mappings_.end()) --found->users;
}

CudaMappings::Leaving CudaMappings::MakeRoom(const Mapping& fresh) {
  Leaving leaving;
  leaving.reserve(mappings_.size());
  const auto take = [&leaving](Mappings::iterator each) {
    each->is_changing = true;
    leaving.push_back(each);
  };
  for (auto each = mappings_.begin(); each != mappings_.end(); ++each) {
    const bool are_pieces = !each->pieces.empty() && !fresh.pieces.empty();
    // Another GPU of this process may have the same allocation.
    const bool is_old = Overlap(each->place, fresh.place) && !IsSameAllocation(each->place, fresh.place) &&
                        (!are_pieces || HaveOther(each->place, each->pieces, fresh.place, fresh.pieces));
    if (each->users == 0 && is_old) take(each);
  }
  if (mappings_.size() - leaving.size() >= kMost) {
    const auto age = [](const Mapping& each) { return each.users > 0 || each.is_changing ? UINT64_MAX : each.used; };
    const auto oldest = std::ranges::min_element(mappings_, {}, age);
    if (age(*oldest) != UINT64_MAX) take(oldest);
  }
  return leaving;
}

void CudaMappings::Erase(const Leaving& closed) {
  for (const auto& each : closed) mappings_.erase(each);
}

void CudaMappings::Enter() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++queues_;
}

bool CudaMappings::Leave() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (--queues_ > 0) return false;
  Leaving leaving;
  leaving.reserve(mappings_.size());
  for (auto each = mappings_.begin(); each != mappings_.end(); ++each) {
    if (!each->is_changing) leaving.push_back(each);
    each->is_changing = true;
  }
  lock.unlock();
  for (const auto& each : leaving) Close(&*each);
  lock.lock();
  Erase(leaving);
  changed_.notify_all();
  return true;
}

}  // namespace annulus
