#include "collectives/cuda/cuda_sharing.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "base/log.h"
#include "collectives/cuda/cuda_domain.h"
#include "collectives/cuda/shared_allocations.h"

namespace annulus {
namespace {

// The number of the run that a place with descriptors is.
uint64_t NumberOf(const SharedPlace& place) {
  uint64_t number = 0;
  std::memcpy(&number, place.handle, sizeof number);
  return number;
}

}  // namespace

CudaSharing::CudaSharing(CudaDomain* domain, ReduceOn on) : domain_(domain), on_(on) { domain_->mappings().Enter(); }

CudaSharing::~CudaSharing() {
  Release();
  if (domain_->mappings().Leave()) domain_->pieces().Clear();
}

const CudaSharing::Exported* CudaSharing::Find(const Known& known) {
  if (known.can_be_exported == 0 || known.id == 0 || known.begin == 0) return nullptr;
  const auto found = std::ranges::find(exports_, known.id, &Exported::id);
  if (found != exports_.end()) return &*found;
  const auto before = unnamed_.find(known.id);
  if (before != unnamed_.end() && !before->second.MayTry()) return nullptr;
  Exported exported{known.id, {}, known.device};
  exported.place.begin = known.begin;
  exported.place.bytes = known.bytes;
  if (const Status named = NameAllocation(domain_, known.device, &exported.place); !named.ok()) {
    TellStays(known.device, named);
    if (before == unnamed_.end() && unnamed_.size() == kMostRuns) unnamed_.clear();
    unnamed_[known.id].Failed();
    return nullptr;
  }
  unnamed_.erase(known.id);
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
  const CudaDevice* used = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain_->Use(device, &used));
  std::shared_ptr<const CudaPieces::Run> run;
  ANNULUS_RETURN_IF_ERROR(domain_->pieces().Find(*used, memory, bytes, &run));
  const uint64_t number = run->number();
  ANNULUS_RETURN_IF_ERROR(MayPassOn(number));
  std::memcpy(place->handle, &number, sizeof number);
  std::memcpy(place->device, used->uuid().bytes, sizeof place->device);
  place->process = domain_->process();
  place->begin = run->begin();
  place->bytes = run->bytes();
  place->files = run->pieces().size();
  place->from = sent_.sender.name();
  return Status();
}

// What others have got already needs no letter.
Status CudaSharing::MayPassOn(uint64_t run) {
  const auto refused = sent_.refusals.find(run);
  if (refused != sent_.refusals.end() && !refused->second.MayTry())
    return {Code::kUnsupported, "the driver gave no descriptors of it"};
  if (!sent_.runs.contains(run) && !sent_.sends.MayTry())
    return {Code::kUnsupported, "descriptors could not be sent before"};
  return sent_.sender.Open();
}

void CudaSharing::TellStays(int device, const Status& why) {
  if (!told_.IsNew(why.message())) return;
  Log(LogLevel::kInfo, -1, "memory of GPU %d stays within its process: %s", device, why.message().c_str());
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
    Status reached = Reach(*used, place, &begin);
    if (reached.code() == Code::kSystem) domain_->peers().Refuse(*used, of, reached);
    ANNULUS_RETURN_IF_ERROR(std::move(reached));
  } else {
    ANNULUS_RETURN_IF_ERROR(ReachOwn(*used, place, &begin));
  }
  *memory = begin + place.offset;
  // Of other processes' descriptors the driver has mapped just what the place says.
  return place.files > 0 && place.process != domain_->process() ? Status() : CheckSharedRange(domain_, *memory, bytes);
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
  return ReachOwnAllocation(domain_, device, place, begin);
}

// The driver opens nothing at the addresses of what its owner has freed and some window still has here. That goes when
// the link of the window has been told.
Status CudaSharing::ReachByHandle(const CudaDevice& device, const SharedPlace& place, std::byte** begin) {
  const std::string handle(reinterpret_cast<const char*>(place.handle), sizeof place.handle);
  const auto before = unopened_.find(handle);
  if (before != unopened_.end() && !before->second.MayTry())
    return {Code::kUnsupported, "the driver did not open it before"};
  Status held = domain_->mappings().Hold(device, place, nullptr, begin);
  if (held.ok()) {
    held_.push_back({&device, *begin});
    unopened_.erase(handle);
  } else {
    if (before == unopened_.end() && unopened_.size() == kMostRuns) unopened_.clear();
    unopened_[handle].Failed();
  }
  return held;
}

Status CudaSharing::Reach(const CudaDevice& device, const SharedPlace& place, std::byte** begin) {
  CudaMappings& mappings = domain_->mappings();
  held_.reserve(held_.size() + 1);
  if (place.files == 0) return ReachByHandle(device, place, begin);
  Status held = mappings.Hold(device, place, nullptr, begin);
  if (held.would_block()) {
    std::vector<Wanted>& wanted = coming_.wanted;
    const RunOf run{place.process, NumberOf(place)};
    const auto is_it = [&](const Wanted& each) {
      return each.device == &device && each.place.from == place.from && each.place.process == place.process &&
             NumberOf(each.place) == run.second;
    };
    const auto known = std::ranges::find_if(wanted, is_it);
    if (known == wanted.end()) {
      const auto lost = lost_.find(run);
      if (lost != lost_.end() && !lost->second.MayTry())
        return {Code::kUnsupported, "its descriptors did not come before"};
      if (wanted.size() == kMostWanted) return {Code::kUnsupported, "too many descriptors are needed"};
      wanted.push_back({&device, place});
      return held;
    }
    if (!known->is_awaited) return held;
    MapLetters(place.from);
    ANNULUS_RETURN_IF_ERROR(known->outcome);
    held = mappings.Hold(device, place, nullptr, begin);
    if (held.would_block() && !std::exchange(known->is_lost, true)) NoteLost(run);
  }
  if (held.ok()) held_.push_back({&device, *begin});
  return held;
}

void CudaSharing::NoteLost(const RunOf& run) {
  if (lost_.size() == kMostRuns) lost_.clear();
  lost_[run].Failed();
}

// So there are never more descriptors than one letter has.
void CudaSharing::MapLetters(uint64_t from) {
  FileLetter letter;
  while (coming_.post.Take(from, &letter)) {
    for (Wanted& each : coming_.wanted) {
      if (each.place.from != from || !each.outcome.ok()) continue;
      held_.reserve(held_.size() + 1);
      std::byte* begin = nullptr;
      Status mapped = domain_->mappings().Hold(*each.device, each.place, &letter, &begin);
      if (mapped.ok()) held_.push_back({each.device, begin}), lost_.erase({each.place.process, NumberOf(each.place)});
      if (!mapped.would_block()) each.outcome = std::move(mapped);
    }
    letter = FileLetter();
  }
}

Status CudaSharing::Await(SharedAddress* address) {
  if (!domain_->driver().has_virtual_memory()) return {Code::kUnsupported, "the driver has no virtual memory API"};
  for (Wanted& each : coming_.wanted) {
    const Status opened = coming_.post.Await(each.place.from);
    if (!opened.ok()) NoteLost({each.place.process, NumberOf(each.place)});
    ANNULUS_RETURN_IF_ERROR(opened);
    each.is_awaited = true;
  }
  *address = coming_.post.address();
  return Status();
}

Status CudaSharing::Send(const SharedPlace& place, const SharedAddress& to) {
  if (place.files == 0) return Status();
  const uint64_t number = NumberOf(place);
  const std::shared_ptr<const CudaPieces::Run> run = domain_->pieces().At(number);
  if (run == nullptr) return {Code::kUnsupported, "its memory has changed since"};
  FileLetter letter;
  letter.process = place.process;
  letter.run = number;
  if (Status exported = run->Export(&letter); !exported.ok()) {
    if (sent_.refusals.size() == kMostRuns) sent_.refusals.clear();
    sent_.refusals[number].Failed();
    return exported;
  }
  Status sent = sent_.sender.Send(to, letter);
  if (sent.ok()) {
    if (sent_.runs.size() == kMostRuns) sent_.runs.clear();
    sent_.runs.insert(number);
    sent_.refusals.erase(number);
    sent_.sends.Succeeded();
  } else {
    sent_.runs.erase(number);
    sent_.sends.Failed();
  }
  return sent;
}

void CudaSharing::Release() {
  for (const Held& each : held_) domain_->mappings().Release(*each.device, each.begin);
  held_.clear();
  coming_.wanted.clear();
  coming_.post.Close();
  runs_.clear();
}

}  // namespace annulus
