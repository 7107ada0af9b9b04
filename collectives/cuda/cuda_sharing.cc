#include "collectives/cuda/cuda_sharing.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/log.h"
#include "collectives/cuda/cuda_domain.h"

namespace annulus {

CudaSharing::CudaSharing(CudaDomain* domain, ReduceOn on) : domain_(domain), on_(on) { domain_->mappings().Enter(); }

CudaSharing::~CudaSharing() {
  Release();
  domain_->mappings().Leave();
}

const CudaSharing::Exported* CudaSharing::Find(const std::byte* memory) {
  const cuda::Driver& driver = domain_->driver();
  uint64_t id = 0;
  unsigned can_be_exported = 0;
  int device = -1;
  cuda::DevicePointer begin = 0;
  size_t bytes = 0;
  using Attribute = cuda::PointerAttribute;
  Attribute attributes[] = {Attribute::kBufferId, Attribute::kIsLegacyIpcCapable, Attribute::kDeviceOrdinal,
                            Attribute::kRangeStart, Attribute::kRangeSize};
  void* values[] = {&id, &can_be_exported, &device, &begin, &bytes};
  const cuda::Result known =
      driver->PointerGetAttributes(std::size(attributes), attributes, values, cuda::ToDevice(memory));
  if (known != cuda::Result::kSuccess || can_be_exported == 0 || id == 0 || begin == 0) return nullptr;
  const auto found = std::ranges::find(exports_, id, &Exported::id);
  if (found != exports_.end()) return &*found;
  Exported exported{id, {}, device};
  exported.place.begin = begin;
  exported.place.bytes = bytes;
  if (const Status named = Name(&exported); !named.ok()) {
    Log(LogLevel::kInfo, -1, "memory of GPU %d stays within its process: %s", device, named.message().c_str());
    return nullptr;
  }
  if (exports_.size() == kMostExports) exports_.erase(exports_.begin());
  exports_.push_back(exported);
  return &exports_.back();
}

Status CudaSharing::Name(Exported* exported) const {
  const cuda::Driver& driver = domain_->driver();
  SharedPlace& place = exported->place;
  const CudaDevice* device = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain_->Use(exported->device, &device));
  const cuda::ScopedContext scope(driver, device->context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  cuda::IpcMemHandle handle;
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->IpcGetMemHandle(&handle, place.begin), "cuIpcGetMemHandle"));
  static_assert(sizeof handle.bytes == sizeof place.handle && sizeof device->uuid().bytes == sizeof place.device);
  std::memcpy(place.handle, handle.bytes, sizeof handle.bytes);
  std::memcpy(place.device, device->uuid().bytes, sizeof place.device);
  place.process = domain_->process();
  return Status();
}

int CudaSharing::Export(const std::byte* memory, size_t bytes, SharedPlace* place) {
  const Exported* const exported = Find(memory);
  if (exported == nullptr) return -1;
  *place = exported->place;
  place->offset = cuda::ToDevice(memory) - place->begin;
  return bytes <= place->bytes - place->offset ? exported->device : -1;
}

bool CudaSharing::CanReduce(int device, DataType type, ReduceOp op) const {
  const CudaDevice* used = nullptr;
  if (on_ == ReduceOn::kCpu || !domain_->Use(device, &used).ok()) return false;
  const PlainReduction plain = PlainOf(type, op);
  return used->KernelFor(plain.type, plain.op) != nullptr;
}

Status CudaSharing::Import(int device, const SharedPlace& place, size_t bytes, std::byte** memory) {
  if (place.offset > place.bytes || bytes > place.bytes - place.offset)
    return Status::Invalid("a rank shares less of its GPU's memory than the call needs");
  const CudaDevice* used = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain_->Use(device, &used));
  std::byte* begin = nullptr;
  if (place.process != domain_->process()) {
    ANNULUS_RETURN_IF_ERROR(domain_->mappings().Hold(*used, place, &begin));
    held_.push_back(begin);
  } else if (std::memcmp(place.device, used->uuid().bytes, sizeof place.device) == 0) {
    begin = cuda::FromDevice(place.begin);  // No process maps its own memory.
  } else {
    // Whether a process's GPUs may reach each other is the program's affair.
    return {Code::kUnsupported, "it lies on another GPU of this process"};
  }
  *memory = begin + place.offset;
  return CheckRange(*memory, bytes);
}

// What a peer says of its memory is not relied on.
Status CudaSharing::CheckRange(const std::byte* memory, size_t bytes) const {
  cuda::PointerPlace place;
  ANNULUS_RETURN_IF_ERROR(domain_->driver().PlaceOf(memory, &place));
  const bool is_there = place.type == cuda::MemoryType::kDevice && place.begin != 0;
  if (is_there && bytes <= place.bytes - (cuda::ToDevice(memory) - place.begin)) return Status();
  return Status::Invalid("a rank shares less of its GPU's memory than it says");
}

void CudaSharing::Release() {
  for (const std::byte* const begin : held_) domain_->mappings().Release(begin);
  held_.clear();
}

}  // namespace annulus
