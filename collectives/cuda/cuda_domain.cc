#include "collectives/cuda/cuda_domain.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <utility>

#include "base/log.h"
#include "collectives/cuda/cuda_queue.h"
#include "collectives/cuda/cuda_stream_calls.h"

namespace annulus {
namespace {

// Process numbers come again, and containers of a host have their own.
uint64_t ProcessNumber() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

// Sets *device to the one of that number, once no other thread takes it up; null: this one is to, as long as this
// lives.
class CudaDomain::Opening {
 public:
  Opening(CudaDomain* domain, int ordinal, const CudaDevice** device) : domain_(domain), ordinal_(ordinal) {
    std::unique_lock<std::mutex> lock(domain_->mutex_);
    domain_->devices_.opened.wait(lock, [&] { return !domain_->devices_.opening.contains(ordinal_); });
    *device = domain_->Find(ordinal_);
    if (*device != nullptr) return;
    domain_->devices_.opening.insert(ordinal_);
    is_ours_ = true;
  }
  ~Opening() {
    if (!is_ours_) return;
    const std::lock_guard<std::mutex> lock(domain_->mutex_);
    domain_->devices_.opening.erase(ordinal_);
    domain_->devices_.opened.notify_all();
  }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

 private:
  CudaDomain* const domain_;
  const int ordinal_;
  bool is_ours_ = false;
};

CudaDomain::CudaDomain(std::unique_ptr<cuda::Driver> driver, std::span<const std::byte> image)
    : MemoryDomain(MemoryKind::kDevice),
      driver_(std::move(driver)),
      image_(image),
      exports_(this, &ranges_),
      process_(ProcessNumber()) {}

// Children of one process have the same addresses, so that one would take a sibling's memory for its own.
uint64_t CudaDomain::process() const {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  return process_ + kOdd * static_cast<uint64_t>(getpid());
}

CudaDomain::~CudaDomain() {
  exports_.End();
  // A graph may be launched yet: what it has stays for ever.
  for (auto& call : left_.to_graphs) {
    if (!call->IsFree()) static_cast<void>(call.release());
  }
  slots_.ForgetDevice();
}

// If the driver cannot say where the memory lies, or a GPU had it, it counts as the device's: the CPU does not touch
// it, and Prepare fails with the reason.
bool CudaDomain::Owns(const void* pointer) const {
  cuda::PointerPlace place;
  const bool is_known = driver_->PlaceOf(pointer, &place).ok();
  // An old driver may not know some attributes.
  if (!is_known) return driver_->unusable().empty();
  if (place.type == cuda::MemoryType::kDevice) return true;
  return place.type == cuda::MemoryType::kNone && ranges_.IsFreed(pointer);
}

// What the driver cannot tell may be.
bool CudaDomain::IsMemory(const void* pointer) const {
  cuda::PointerPlace place;
  return !driver_->PlaceOf(pointer, &place).ok() || place.type == cuda::MemoryType::kDevice;
}

Status CudaDomain::CheckEnd(const std::byte* pointer, size_t bytes, const cuda::PointerPlace& place) const {
  const uintptr_t begin = cuda::ToDevice(pointer);
  cuda::PointerPlace next = place;
  // Memory that the program has mapped in one piece may be several allocations.
  while (next.begin != 0) {
    const size_t inside = next.begin + next.bytes - begin;
    if (bytes <= inside) return Status();
    ANNULUS_RETURN_IF_ERROR(driver_->PlaceOf(pointer + inside, &next));
    if (next.type != cuda::MemoryType::kDevice || next.device != place.device)
      return Status::Invalid("of its " + std::to_string(bytes) + " bytes only " + std::to_string(inside) +
                             " lie in memory of GPU " + std::to_string(place.device));
  }
  return Status();
}

Status CudaDomain::Prepare(const void* pointer, size_t bytes, ReduceOn on, DomainQueue* queue) {
  cuda::PointerPlace place;
  ANNULUS_RETURN_IF_ERROR(driver_->PlaceOf(pointer, &place));
  if (place.type == cuda::MemoryType::kNone && ranges_.IsFreed(pointer))
    return Status::Invalid("it lies in memory of a GPU that was freed");
  if (place.type != cuda::MemoryType::kDevice) return Status();
  ANNULUS_RETURN_IF_ERROR(CheckEnd(static_cast<const std::byte*>(pointer), bytes, place));
  const CudaDevice* device = nullptr;
  auto* const own = static_cast<CudaQueue*>(queue);
  ANNULUS_RETURN_IF_ERROR(UseFor(own, place.device, &device));
  if (place.begin != 0) ranges_.Add(place.begin, place.bytes, [this](const void* each) { return IsMemory(each); });
  if (place.context != nullptr && place.context != device->context())
    return {Code::kUnsupported, "it belongs to a context that is not the primary one of its GPU"};
  const std::string& missing = device->kernels_missing();
  const std::string why = on != ReduceOn::kGpu ? "" : missing.empty() ? slots_.not_pinned() : missing;
  if (!why.empty()) return {Code::kUnsupported, "device_reduce (ANNULUS_DEVICE_REDUCE) is gpu, but " + why};
  if (own != nullptr) own->Prepare(*device);
  return Status();
}

Status CudaDomain::OpenQueue(ReduceOn on, std::unique_ptr<DomainQueue>* queue) {
  *queue = std::make_unique<CudaQueue>(this, on);
  return Status();
}

std::unique_ptr<StreamCalls> CudaDomain::OpenStreams(size_t most_bytes) {
  if (!driver_->unusable().empty()) return nullptr;
  return std::make_unique<CudaStreamCalls>(this, most_bytes);
}

Status CudaDomain::UseHandle(cuda::Device handle, const CudaDevice** device) {
  for (int ordinal = 0;; ++ordinal) {
    cuda::Device each = 0;
    ANNULUS_RETURN_IF_ERROR(driver_->ToStatus((*driver_)->DeviceGet(&each, ordinal), "cuDeviceGet"));
    if (each == handle) return UseNow(ordinal, device);
  }
}

void CudaDomain::OpenGates() {
  const std::lock_guard<std::mutex> lock(streams_mutex_);
  for (CudaStreamCalls* const calls : streams_) calls->OpenAllNow();
}

void CudaDomain::Enter(CudaStreamCalls* calls) {
  const std::lock_guard<std::mutex> lock(streams_mutex_);
  if (std::ranges::find(streams_, calls) == streams_.end()) streams_.push_back(calls);
}

void CudaDomain::Leave(CudaStreamCalls* calls, std::vector<std::unique_ptr<CudaStreamCall>> places,
                       std::vector<std::unique_ptr<CudaGraphCall>> in_graphs) {
  std::vector<std::unique_ptr<CudaStreamCall>> free;  // Freed without the lock.
  std::vector<std::unique_ptr<CudaGraphCall>> free_of_graphs;
  const std::lock_guard<std::mutex> lock(streams_mutex_);
  std::erase(streams_, calls);
  std::ranges::move(left_.to_gpus, std::back_inserter(places));
  left_.to_gpus.clear();
  const auto is_left = [](const CudaStreamCall& place) { return place.IsOver() || place.device().is_known_reset(); };
  for (auto& place : places) (is_left(*place) ? free : left_.to_gpus).push_back(std::move(place));
  std::ranges::move(left_.to_graphs, std::back_inserter(in_graphs));
  left_.to_graphs.clear();
  for (auto& call : in_graphs) (call->IsFree() ? free_of_graphs : left_.to_graphs).push_back(std::move(call));
}

void CudaDomain::AddFoldMemory(uint64_t begin, const std::shared_ptr<FoldMemory>& memory) {
  const std::lock_guard<std::mutex> lock(streams_mutex_);
  std::erase_if(fold_memories_, [](const auto& each) { return each.second.expired(); });
  fold_memories_[begin] = memory;
}

std::shared_ptr<FoldMemory> CudaDomain::FindFoldMemory(uint64_t begin) {
  const std::lock_guard<std::mutex> lock(streams_mutex_);
  const auto found = fold_memories_.find(begin);
  return found != fold_memories_.end() ? found->second.lock() : nullptr;
}

// Whole pages, which no other slots share: a page is pinned once.
std::byte* CudaDomain::AllocateSlots(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);  // Some runners have no slots where short paths are off.
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  slots_.Add(static_cast<std::byte*>(memory), bytes);
  return static_cast<std::byte*>(memory);
}

void CudaDomain::FreeSlots(std::byte* slots, size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  slots_.Remove(slots, bytes);
  munmap(slots, bytes);
}

Status CudaDomain::RegisterSlots(std::byte* slots, size_t bytes) {
  slots_.Add(slots, bytes);
  return Status();
}

void CudaDomain::UnregisterSlots(std::byte* slots, size_t bytes) { slots_.Remove(slots, bytes); }

const DeviceExports* CudaDomain::exports() const { return driver_->unusable().empty() ? &exports_ : nullptr; }

const char* CudaDomain::Keep(const std::string& text, const char* otherwise) const {
  // Some texts have numbers of bytes; a program that asks for ever does not make us keep them all.
  constexpr size_t kMostKept = 64;
  const auto kept = kept_.find(text);
  if (kept != kept_.end()) return kept->c_str();
  return kept_.size() < kMostKept ? kept_.insert(text).first->c_str() : otherwise;
}

CudaReport CudaDomain::Report(ReduceOn on, const void* links) const {
  using Path = CudaReport::Path;
  const std::lock_guard<std::mutex> lock(mutex_);
  CudaReport report;
  report.driver = driver_->version();
  report.why = "no call of this process has had a device buffer yet";
  if (!driver_->unusable().empty()) report.why = driver_->unusable().c_str();
  if (devices_.all.empty()) return report;
  const CudaDevice& first = *devices_.all.front();
  report.number = first.ordinal();
  report.capability = first.capability();
  report.name = first.name().c_str();
  const std::string not_pinned = slots_.not_pinned();
  report.why = not_pinned.empty() ? "" : Keep(not_pinned, "slots are not pinned; the log has the first reason");
  for (const auto& device : devices_.all) {
    if (!device->kernels_missing().empty()) report.why = device->kernels_missing().c_str();
  }
  if (report.why[0] == '\0' && on == ReduceOn::kCpu) report.why = "device_reduce (ANNULUS_DEVICE_REDUCE) is cpu";
  report.path = report.why[0] == '\0' ? Path::kKernels : Path::kStaged;
  for (const std::string& more : {exports_.WayOf(links), shared_.peers.WhyNot()}) {
    if (more.empty()) continue;
    const bool is_best = report.why[0] == '\0';
    report.why = is_best ? Keep(more, "for more reasons than are kept; the log has the first")
                         : Keep(std::string(report.why) + "; " + more, report.why);
  }
  return report;
}

const CudaDevice* CudaDomain::Find(int ordinal) const {
  const auto is_it = [ordinal](const auto& each) { return each->ordinal() == ordinal && !each->is_known_reset(); };
  const auto found = std::ranges::find_if(devices_.all, is_it);
  return found != devices_.all.end() ? found->get() : nullptr;
}

Status CudaDomain::Use(int ordinal, const CudaDevice** device) {
  if (!driver_->unusable().empty()) return {Code::kUnsupported, driver_->unusable()};
  const Opening opening(this, ordinal, device);
  return *device != nullptr ? Status() : OpenDevice(ordinal, device);
}

Status CudaDomain::UseNow(int ordinal, const CudaDevice** device) {
  ANNULUS_RETURN_IF_ERROR(Use(ordinal, device));
  if ((*device)->IsReset()) ANNULUS_RETURN_IF_ERROR(Use(ordinal, device));
  KeepPinned(**device);
  return Status();
}

Status CudaDomain::UseFor(CudaQueue* queue, int ordinal, const CudaDevice** device) {
  ANNULUS_RETURN_IF_ERROR(Use(ordinal, device));
  return queue == nullptr || queue->IsPreparedFor(**device) ? Status() : UseNow(ordinal, device);
}

Status CudaDomain::OpenDevice(int ordinal, const CudaDevice** device) {
  std::unique_ptr<CudaDevice> opened;
  ANNULUS_RETURN_IF_ERROR(CudaDevice::Open(*driver_, ordinal, image_, &opened));
  *device = opened.get();
  shared_.peers.Forget(opened->uuid());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    devices_.all.push_back(std::move(opened));
  }
  const std::string& missing = (*device)->kernels_missing();
  Log(missing.empty() ? LogLevel::kInfo : LogLevel::kWarn, -1, "device memory of %s, %s%s", (*device)->name().c_str(),
      missing.empty() ? "with kernels" : "by copies: ", missing.c_str());
  slots_.PinFor(**device);
  return Status();
}

}  // namespace annulus
