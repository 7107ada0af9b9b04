#include "transport/verbs/device/verbs_regions.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/machine/machine_places.h"
#include "transport/verbs/device/verbs_fork.h"
#include "transport/verbs/device/verbs_memory.h"
#include "transport/verbs/device/verbs_near.h"

namespace annulus {
namespace {

// Time between two looks at what GPUs have freed, each of which asks the driver about all allocations that it knows:
// some 50 us for 256.
constexpr Nanoseconds kSweepInterval = kSecond;

// Why no memory of GPUs is used without a copy; "" when it may be.
std::string WhyNoGpus(const std::vector<std::shared_ptr<VerbsHub>>& hubs, const VerbsGpuMemory& gpus) {
  if (gpus.wish == VerbsDeviceMemory::kOff) return "ANNULUS_VERBS_DEVICE_MEMORY is off";
  const bool can_take = std::ranges::all_of(hubs, [](const auto& hub) { return hub->api().reg_dmabuf_mr != nullptr; });
  return can_take ? gpus.exports->missing() : "libibverbs is older than that of rdma-core 34";
}

bool Overlap(const std::byte* a, size_t a_bytes, const std::byte* b, size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

VerbsRegions::VerbsRegions(std::vector<std::shared_ptr<VerbsHub>> hubs, const MemoryRegistry* registry,
                           const VerbsGpuMemory& gpus, int rank, bool reads)
    : hubs_(std::move(hubs)), registry_(registry), rank_(rank), reads_(reads), maker_(getpid()) {
  ANNULUS_CHECK(hubs_.size() <= kMostVerbsPorts);
  gpus_.given = gpus;
  if (gpus.exports != nullptr) {
    const std::string why = WhyNoGpus(hubs_, gpus);
    if (why.empty()) gpus_.exports = gpus.exports;
    TellGpus(&gpus_.copied, why);
  }
  if (registry_ != nullptr) registry_->AddHolder(this);
}

VerbsRegions::~VerbsRegions() {
  if (registry_ != nullptr) registry_->RemoveHolder(this);
  if (gpus_.given.exports != nullptr) gpus_.given.exports->TellWay(gpus_.given.links, "");
  for (Entry& entry : entries_) Deregister(&entry);
  if (num_dropped_ == 0) return;
  Log(LogLevel::kInfo, rank_, "%llu times a region of memory made room for another one on RDMA devices",
      static_cast<unsigned long long>(num_dropped_));
}

VerbsRegions::Known* VerbsRegions::At(VerbsPortSet ports, const std::byte* data, size_t bytes) {
  if (registry_ != nullptr && registry_->version() != version_) Refresh();
  auto known =
      std::ranges::upper_bound(known_, data, {}, [](const Known& each) -> const std::byte* { return each.begin; });
  if (known == known_.begin()) return GpusAt(ports, data, bytes);
  --known;
  const auto offset = static_cast<size_t>(data - known->begin);
  if (offset >= known->bytes) return GpusAt(ports, data, bytes);
  return bytes <= known->bytes - offset ? &*known : nullptr;
}

// The driver of the GPU tells each time: other memory may lie at the same address by now.
VerbsRegions::Known* VerbsRegions::GpusAt(VerbsPortSet ports, const std::byte* data, size_t bytes) {
  DeviceRange range;
  if (gpus_.exports == nullptr) return nullptr;
  if (!gpus_.exports->RangeOf(data, bytes, &range)) {
    const bool is_gpus = range.device >= 0;
    if (is_gpus && !std::exchange(gpus_.others_told, true)) TellGpus(&gpus_.others, "no memory of cudaMalloc");
    return nullptr;
  }
  const auto refused = gpus_.refused.find(range.device);
  if (refused != gpus_.refused.end() && (refused->second & ports) != 0) return nullptr;
  const auto known = std::ranges::find(gpus_.known, range.id, &Known::id);
  if (known != gpus_.known.end()) return &*known;
  ForgetFreed(range);
  return &gpus_.known.emplace_back(
      Known{.id = range.id, .begin = range.begin, .bytes = range.bytes, .is_gpus = true, .device = range.device});
}

void VerbsRegions::ForgetFreed(const DeviceRange& with) {
  std::erase_if(gpus_.known, [&](const Known& each) {
    const bool is_named = each.entry != kNoEntry && entries_[each.entry].uses > 0;
    DeviceRange now;
    const bool is_there = !Overlap(each.begin, each.bytes, with.begin, with.bytes) &&
                          (is_named || (gpus_.exports->RangeOf(each.begin, each.bytes, &now) && now.id == each.id));
    if (!is_there && each.entry != kNoEntry) Drop(each.entry);
    if (!is_there) TellLacksNothing(each.id);
    return !is_there;
  });
}

void VerbsRegions::SweepByClock() {
  const Nanoseconds now = Now();
  if (now < gpus_.next_sweep) return;
  if (gpus_.next_sweep != 0) ForgetFreed({});
  gpus_.next_sweep = now + kSweepInterval;
}

std::string VerbsRegions::GpusText() {
  if (gpus_.given.exports == nullptr) return "";
  const std::lock_guard lock(mutex_);
  const std::string why = WhyCopied();
  if (why.empty()) return gpus_.straight.empty() ? "none without a copy yet" : gpus_.straight;
  return (gpus_.straight.empty() ? "" : gpus_.straight + "; some ") + "by copies: " + why;
}

std::string VerbsRegions::WhyCopied() const {
  std::string why;
  for (const std::string* const each : {&gpus_.copied, &gpus_.others, &gpus_.lacking}) {
    if (!each->empty()) why += (why.empty() ? "" : "; ") + *each;
  }
  return why;
}

void VerbsRegions::TellGpus(std::string* part, std::string text) {
  bool is_best = false;
  {
    const std::lock_guard lock(mutex_);
    *part = std::move(text);
    is_best = !gpus_.straight.empty() && WhyCopied().empty();
  }
  gpus_.given.exports->TellWay(gpus_.given.links, is_best ? "" : "memory of GPUs over verbs: " + GpusText());
}

void VerbsRegions::TellLacking(uint64_t id, std::string text) {
  gpus_.waiting = id;
  TellGpus(&gpus_.lacking, std::move(text));
}

void VerbsRegions::TellLacksNothing(uint64_t id) {
  if (gpus_.waiting == id) TellLacking(0, "");
}

VerbsUse VerbsRegions::Acquire(VerbsPortSet ports, const std::byte* data, size_t bytes, bool is_copied) {
  Known* const known = At(ports, data, bytes);
  if (known == nullptr) return kNoVerbsUse;
  if (!Knows(*known, ports) && !Register(known, ports)) {
    if (is_copied) known->copied_bytes += bytes;
    return kNoVerbsUse;
  }
  Entry& entry = entries_[known->entry];
  entry.used = ++num_uses_;
  ++entry.uses;
  return static_cast<VerbsUse>(known->entry);
}

VerbsUse VerbsRegions::AcquireLanding(const VerbsPortRegions& of, const std::byte* data, size_t bytes) {
  const VerbsUse use = Acquire(of.bit(), data, bytes);
  if (use == kNoVerbsUse || entries_[use].writes != DeviceWrites::kHidden) return use;
  LetGo(use);
  return kNoVerbsUse;
}

void VerbsRegions::LetGo(VerbsUse use) {
  Entry& entry = entries_[use];
  ANNULUS_CHECK(entry.uses > 0);
  --entry.uses;
}

VerbsPromise VerbsRegions::Promise(VerbsPortSet ports, const std::byte* data, size_t bytes, bool is_copied) {
  const VerbsUse use = Acquire(ports, data, bytes, is_copied);
  if (use == kNoVerbsUse) return {};
  LetGo(use);
  ++entries_[use].promises;
  return {use, entries_[use].id};
}

void VerbsRegions::Break(const VerbsPromise& promise) {
  if (promise.entry == kNoVerbsUse || entries_[promise.entry].id != promise.id) return;
  ANNULUS_CHECK(entries_[promise.entry].promises > 0);  // What is promised is not registered anew.
  --entries_[promise.entry].promises;
}

VerbsKeys VerbsRegions::KeysOf(VerbsUse use, size_t port) {
  if (registry_ != nullptr && registry_->version() != version_) Refresh();
  return entries_[use].keys[port];
}

bool VerbsRegions::MayAcquire(VerbsPortSet ports, const std::byte* data, size_t bytes) {
  const Known* const known = At(ports, data, bytes);
  return known != nullptr && (known->refused & ports) == 0;
}

void VerbsRegions::Refresh() {
  version_ = registry_->version();
  std::vector<Known> known;
  for (const auto& memory : registry_->Regions()) {
    const auto old = std::ranges::lower_bound(known_, memory->begin, {}, &Known::begin);
    if (old == known_.end() || old->id != memory->id) {
      known.push_back({.id = memory->id, .begin = memory->begin, .bytes = memory->bytes});
    } else {
      known.push_back(*old);
      old->entry = kNoEntry;
    }
  }
  for (const Known& each : known_) {
    if (each.entry != kNoEntry) Drop(each.entry);
  }
  known_ = std::move(known);
}

bool VerbsRegions::Register(Known* known, VerbsPortSet ports) {
  if ((known->refused & ports) != 0) return false;
  const bool is_due = known->copied_bytes >= known->bytes;
  const bool needs_place = known->entry == kNoEntry && num_registered_ == kMost;
  if (needs_place && !(is_due && MakeRoom(0, known, false))) {
    // Once, not for each slice.
    if (known->is_gpus && gpus_.waiting == 0) TellLacking(known->id, "more allocations than a device knows");
    return false;
  }
  if (known->lacks_memory && !is_due) return false;
  for (size_t port = 0; port < hubs_.size(); ++port) {
    const VerbsPortSet bit = VerbsPortSet{1} << port;
    if ((ports & bit) != 0 && !Knows(*known, bit) && !RegisterWith(port, known, is_due)) return false;
  }
  known->copied_bytes = 0;
  if (known->is_gpus) TellLacksNothing(known->id);
  return true;
}

// A refusal for lack of memory is for good where no other region has any.
bool VerbsRegions::RegisterWith(size_t port, Known* known, bool is_due) {
  Status asked = Ask(port, known);
  if (asked.code() == Code::kOutOfMemory && is_due && MakeRoom(known->bytes, known, known->is_gpus)) {
    asked = Ask(port, known);
  }
  known->lacks_memory = asked.code() == Code::kOutOfMemory && KnowsOthers(*known);
  if (asked.ok()) return true;
  if (known->lacks_memory) {
    if (known->is_gpus) TellLacking(known->id, asked.message());
    if (is_due) known->copied_bytes = 0;
    return false;
  }
  known->refused |= VerbsPortSet{1} << port;
  if (known->is_gpus) TellLacksNothing(known->id);
  if (known->is_gpus && asked.code() == Code::kUnsupported) gpus_.refused[known->device] |= VerbsPortSet{1} << port;
  NoteRefusal(*known, asked.message());
  return false;
}

// Takes as long as the region is large. Its owner does not give it back meanwhile, since a call names it.
Status VerbsRegions::Ask(size_t port, Known* known) {
  ibv_mr* region = nullptr;
  std::string near;
  if (known->is_gpus && !IsNear(port, *known, &near)) return {Code::kUnsupported, near};
  ANNULUS_RETURN_IF_ERROR(AskFor(port, *known, &region));
  if (known->is_gpus) TellGpus(&gpus_.straight, "without a copy" + near);
  if (!known->is_gpus) ShareWithChildren(hubs_[port]->api(), known->begin, known->bytes);
  const DeviceWrites writes = known->is_gpus ? gpus_.exports->WritesTo(known->device) : DeviceWrites::kSeen;
  if (writes == DeviceWrites::kHidden) {
    NoteRefusal(*known, "GPU " + std::to_string(known->device) + " does not see what network cards write");
  }
  const std::lock_guard lock(mutex_);
  if (known->entry == kNoEntry) {
    const auto is_free = [](const Entry& entry) { return entry.id == 0 && entry.uses == 0; };
    const auto place = std::ranges::find_if(entries_, is_free);
    known->entry = static_cast<uint32_t>(place - entries_.begin());
    if (place == entries_.end()) entries_.emplace_back();
    ANNULUS_CHECK(known->entry < kNoVerbsUse);
    entries_[known->entry] = {.id = known->id, .is_gpus = known->is_gpus, .device = known->device, .writes = writes};
    ++num_registered_;
  }
  Entry& entry = entries_[known->entry];
  entry.regions[port] = region;
  entry.keys[port] = {region->lkey, region->rkey};
  entry.ports |= VerbsPortSet{1} << port;
  if (num_dropped_ == 0) {
    Log(LogLevel::kInfo, rank_, "%s moves %zu bytes of %s memory without a copy%s",
        hubs_[port]->device().Describe().c_str(), known->bytes, known->is_gpus ? "a GPU's" : "registered",
        near.c_str());
  }
  return Status();
}

Status VerbsRegions::AskFor(size_t port, const Known& known, ibv_mr** region) const {
  const int access = reads_ ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ : 0;
  if (!known.is_gpus) return RegisterWithDevice(*hubs_[port], known.begin, known.bytes, access, region);
  const DeviceRange range{known.id, known.begin, known.bytes, known.device};
  int fd = -1;
  uint64_t offset = 0;
  ANNULUS_RETURN_IF_ERROR(gpus_.exports->Export(range, &fd, &offset));
  Status status = RegisterDeviceMemory(*hubs_[port], range, fd, offset, access, region);
  close(fd);
  return status;
}

bool VerbsRegions::IsNear(size_t port, const Known& known, std::string* text) const {
  const VerbsDevice& device = hubs_[port]->device();
  const VerbsDistance distance = DistanceOf(*device.context()->device, gpus_.exports->PciAddress(known.device));
  if (!distance.text.empty()) *text = ": GPU and card are " + distance.text;
  if (distance.nearness != Nearness::kSys || gpus_.given.wish != VerbsDeviceMemory::kAuto) return true;
  *text = "GPU " + std::to_string(known.device) + " and " + device.Describe() + " are " + distance.text +
          " (ANNULUS_VERBS_DEVICE_MEMORY=on uses it all the same)";
  return false;
}

// Most machines take no memory of GPUs, and nobody has asked for it unless the setting says so.
void VerbsRegions::NoteRefusal(const Known& known, const std::string& why) {
  if (known.is_gpus) {
    TellGpus(&gpus_.copied, why);
    if (!gpus_.noted.insert(known.device).second) return;
    Log(gpus_.given.wish == VerbsDeviceMemory::kOn ? LogLevel::kWarn : LogLevel::kInfo, rank_,
        "some memory of GPUs goes through host memory, by a copy: %s", why.c_str());
    return;
  }
  if (std::exchange(refusal_noted_, true)) return;
  Log(LogLevel::kWarn, rank_, "some registered memory goes through slots, by a copy: %s", why.c_str());
}

bool VerbsRegions::KnowsOthers(const Known& known) const {
  return std::ranges::any_of(entries_, [&](const Entry& entry) {
    return entry.id != 0 && entry.id != known.id && (entry.is_gpus || !known.is_gpus);
  });
}

bool VerbsRegions::MakeRoom(size_t bytes, const Known* kept, bool gpus_alone) {
  size_t dropped = 0;
  Known* last = LeastRecentlyUsed(kept, gpus_alone);
  for (; last != nullptr && (dropped == 0 || dropped < bytes); last = LeastRecentlyUsed(kept, gpus_alone)) {
    Drop(std::exchange(last->entry, kNoEntry));
    dropped += last->bytes;
    ++num_dropped_;
  }
  return dropped > 0;
}

VerbsRegions::Known* VerbsRegions::LeastRecentlyUsed(const Known* kept, bool gpus_alone) {
  Known* last = nullptr;
  for (std::vector<Known>* const all : {&known_, &gpus_.known}) {
    for (Known& each : *all) {
      if (&each == kept || each.entry == kNoEntry || (gpus_alone && !each.is_gpus)) continue;
      if (entries_[each.entry].uses > 0 || entries_[each.entry].promises > 0) continue;
      if (last == nullptr || entries_[each.entry].used < entries_[last->entry].used) last = &each;
    }
  }
  return last;
}

void VerbsRegions::Drop(uint32_t entry) {
  const std::lock_guard lock(mutex_);
  Entry& gone = entries_[entry];
  Deregister(&gone);
  gone.id = 0;
  gone.ports = 0;
  gone.keys = {};
  --num_registered_;
}

void VerbsRegions::Deregister(Entry* entry) {
  for (size_t port = 0; port < hubs_.size(); ++port) {
    ibv_mr* const region = std::exchange(entry->regions[port], nullptr);
    const int error = region != nullptr ? hubs_[port]->api().dereg_mr(region) : 0;
    if (error == 0) continue;
    Log(LogLevel::kWarn, rank_, "%s does not let go of registered memory: %s", hubs_[port]->device().Describe().c_str(),
        std::strerror(error));
  }
}

void VerbsRegions::Forget(uint64_t id) {
  // A forked child shares the parent's devices, which still need it.
  if (getpid() != maker_) return;
  const std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.id == id && !entry.is_gpus) Deregister(&entry);
  }
}

}  // namespace annulus
