#include "collectives/cuda/cuda_sharing.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "base/log.h"
#include "collectives/cuda/cuda_domain.h"

namespace annulus {

CudaSharing::CudaSharing(CudaDomain* domain, ReduceOn on) : domain_(domain), on_(on) { domain_->mappings().Enter(); }

CudaSharing::~CudaSharing() {
  Release();
  if (domain_->mappings().Leave()) domain_->pieces().Clear();
}

const CudaSharing::Exported* CudaSharing::Find(const Known& known) {
  if (known.can_be_exported == 0 || known.id == 0 || known.begin == 0) return nullptr;
  const auto found = std::ranges::find(exports_, known.id, &Exported::id);
  if (found != exports_.end()) return &*found;
  Exported exported{known.id, {}, known.device};
  exported.place.begin = known.begin;
  exported.place.bytes = known.bytes;
  if (const Status named = Name(&exported); !named.ok()) {
    Log(LogLevel::kInfo, -1, "memory of GPU %d stays within its process: %s", known.device, named.message().c_str());
    return nullptr;
  }
  if (exports_.size() == kMostExports) exports_.erase(exports_.begin());
  exports_.push_back(exported);
  return &exports_.back();
}

Status CudaSharing::FindPieces(const std::byte* memory, size_t bytes, int device, SharedPlace* place) {
  const cuda::Driver& driver = domain_->driver();
  if (!driver.has_virtual_memory()) return {Code::kUnsupported, "it is not of cudaMalloc"};
  unsigned is_mapped = 0;
  uint64_t kinds = 0;
  void* pool = nullptr;
  using Attribute = cuda::PointerAttribute;
  Attribute attributes[] = {Attribute::kIsMapped, Attribute::kShareableHandles, Attribute::kPool};
  void* values[] = {&is_mapped, &kinds, &pool};
  ANNULUS_RETURN_IF_ERROR(
      driver.ToStatus(driver->PointerGetAttributes(std::size(attributes), attributes, values, cuda::ToDevice(memory)),
                      "cuPointerGetAttributes"));
  // What a pool gives may begin anywhere in its memory, which nothing tells.
  if (pool != nullptr) return {Code::kUnsupported, "it is of a memory pool"};
  if (is_mapped == 0 || (kinds & static_cast<uint64_t>(cuda::ShareableHandle::kFile)) == 0)
    return {Code::kUnsupported, "it is neither of cudaMalloc nor was made to be passed on by a descriptor"};
  if (!sends_files_) return {Code::kUnsupported, "descriptors cannot be sent"};
  const CudaDevice* used = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain_->Use(device, &used));
  std::shared_ptr<const CudaPieces::Run> run;
  ANNULUS_RETURN_IF_ERROR(domain_->pieces().Find(*used, memory, bytes, &run));
  const uint64_t number = run->number();
  if (refused_.contains(number)) return {Code::kUnsupported, "the driver gives no descriptors of it"};
  std::memcpy(place->handle, &number, sizeof number);
  std::memcpy(place->device, used->uuid().bytes, sizeof place->device);
  place->process = domain_->process();
  place->begin = run->begin();
  place->bytes = run->bytes();
  place->files = run->pieces().size();
  return Status();
}

void CudaSharing::TellStays(int device, const Status& why) {
  if (told_.size() == kMostReasons || !told_.insert(why.message()).second) return;
  Log(LogLevel::kInfo, -1, "memory of GPU %d stays within its process: %s", device, why.message().c_str());
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
  *place = SharedPlace();
  Known known;
  using Attribute = cuda::PointerAttribute;
  Attribute attributes[] = {Attribute::kBufferId, Attribute::kIsLegacyIpcCapable, Attribute::kDeviceOrdinal,
                            Attribute::kRangeStart, Attribute::kRangeSize};
  void* values[] = {&known.id, &known.can_be_exported, &known.device, &known.begin, &known.bytes};
  const cuda::Result result =
      domain_->driver()->PointerGetAttributes(std::size(attributes), attributes, values, cuda::ToDevice(memory));
  if (result != cuda::Result::kSuccess || known.device < 0) return -1;
  if (const Exported* const exported = Find(known); exported != nullptr) {
    *place = exported->place;
  } else if (known.can_be_exported != 0) {
    return -1;
  } else if (const Status found = FindPieces(memory, bytes, known.device, place); !found.ok()) {
    TellStays(known.device, found);
    return -1;
  }
  place->offset = cuda::ToDevice(memory) - place->begin;
  return bytes <= place->bytes - place->offset ? known.device : -1;
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
  cuda::Uuid of;
  std::memcpy(of.bytes, place.device, sizeof of.bytes);
  ANNULUS_RETURN_IF_ERROR(domain_->peers().Check(*used, of));
  std::byte* begin = nullptr;
  if (place.process != domain_->process()) {
    Status mapped = Map(*used, place, &begin);
    if (mapped.code() == Code::kSystem) domain_->peers().Refuse(*used, of, mapped);
    ANNULUS_RETURN_IF_ERROR(std::move(mapped));
  } else {
    ANNULUS_RETURN_IF_ERROR(ReachOwn(*used, place, &begin));
  }
  *memory = begin + place.offset;
  // Of other processes' descriptors the driver has mapped just what the place says.
  return place.files > 0 && place.process != domain_->process() ? Status() : CheckRange(*memory, bytes);
}

Status CudaSharing::Map(const CudaDevice& device, const SharedPlace& place, std::byte** begin) {
  held_.reserve(held_.size() + 1);
  for (FileLetter letter; post_.Take(&letter);) letters_.push_back(std::move(letter));
  ANNULUS_RETURN_IF_ERROR(domain_->mappings().Hold(device, place, letters_, begin));
  held_.push_back({&device, *begin});
  return Status();
}

// No process maps its own memory by a name.
Status CudaSharing::ReachOwn(const CudaDevice& device, const SharedPlace& place, std::byte** begin) {
  *begin = cuda::FromDevice(place.begin);
  if (std::memcmp(place.device, device.uuid().bytes, sizeof place.device) == 0) return Status();
  if (place.files > 0) {
    uint64_t number = 0;
    std::memcpy(&number, place.handle, sizeof number);
    std::shared_ptr<const CudaPieces::Run> run = domain_->pieces().At(number);
    if (run == nullptr) return {Code::kUnsupported, "it has changed since"};
    runs_.push_back(std::move(run));
    return runs_.back()->MapFor(device, begin);
  }
  cuda::PointerPlace known;
  ANNULUS_RETURN_IF_ERROR(domain_->driver().PlaceOf(*begin, &known));
  if (known.type != cuda::MemoryType::kDevice) return {Code::kUnsupported, "it has changed since"};
  const CudaDevice* owner = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain_->Use(known.device, &owner));
  return domain_->peers().Enable(device, *owner);
}

// What a peer says of its memory is not relied on.
Status CudaSharing::CheckRange(const std::byte* memory, size_t bytes) const {
  cuda::PointerPlace place;
  ANNULUS_RETURN_IF_ERROR(domain_->driver().PlaceOf(memory, &place));
  const bool is_there = place.type == cuda::MemoryType::kDevice && place.begin != 0;
  if (is_there && bytes <= place.bytes - (cuda::ToDevice(memory) - place.begin)) return Status();
  return Status::Invalid("a rank shares less of its GPU's memory than it says");
}

Status CudaSharing::Await(SharedAddress* address) {
  if (!domain_->driver().has_virtual_memory()) return {Code::kUnsupported, "the driver has no virtual memory API"};
  ANNULUS_RETURN_IF_ERROR(post_.Open());
  *address = post_.address();
  return Status();
}

Status CudaSharing::Send(const SharedPlace& place, const SharedAddress& to) {
  if (place.files == 0) return Status();
  uint64_t number = 0;
  std::memcpy(&number, place.handle, sizeof number);
  const std::shared_ptr<const CudaPieces::Run> run = domain_->pieces().At(number);
  if (run == nullptr) return {Code::kUnsupported, "its memory has changed since"};
  FileLetter letter;
  letter.process = place.process;
  letter.run = number;
  // What fails would not go better the next time, and each call would try.
  if (Status exported = run->Export(&letter); !exported.ok()) {
    if (refused_.size() == kMostRefused) refused_.clear();
    refused_.insert(number);
    return exported;
  }
  Status sent = FilePost::Send(to, letter);
  sends_files_ = sent.ok();
  return sent;
}

void CudaSharing::Release() {
  for (const Held& each : held_) domain_->mappings().Release(*each.device, each.begin);
  held_.clear();
  runs_.clear();
  letters_.clear();
  post_.Close();
}

}  // namespace annulus
