#include "transport/verbs/device/verbs_regions.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.h"
#include "transport/verbs/device/verbs_fork.h"
#include "transport/verbs/device/verbs_memory.h"

namespace annulus {

VerbsRegions::VerbsRegions(std::shared_ptr<VerbsHub> hub, const MemoryRegistry* registry, int rank, bool reads)
    : hub_(std::move(hub)), registry_(registry), rank_(rank), reads_(reads), maker_(getpid()) {
  if (registry_ != nullptr) registry_->AddHolder(this);
}

VerbsRegions::~VerbsRegions() {
  if (registry_ != nullptr) registry_->RemoveHolder(this);
  for (const Known& known : known_) {
    if (known.region != nullptr) Deregister(known.region);
  }
}

VerbsRegions::Known* VerbsRegions::At(const std::byte* data, size_t bytes) {
  if (registry_ == nullptr) return nullptr;
  if (registry_->version() != version_) Refresh();
  for (Known& known : known_) {
    const bool begins = data >= known.begin && bytes <= known.bytes;
    if (begins && static_cast<size_t>(data - known.begin) <= known.bytes - bytes) return &known;
  }
  return nullptr;
}

bool VerbsRegions::Find(const std::byte* data, size_t bytes, VerbsKeys* keys) {
  Known* const known = At(data, bytes);
  if (known == nullptr) return false;
  if (known->state == State::kNew) Register(known);
  *keys = known->keys;
  return known->state == State::kUsable;
}

bool VerbsRegions::MayFind(const std::byte* data, size_t bytes) {
  const Known* const known = At(data, bytes);
  return known != nullptr && known->state != State::kRefused;
}

void VerbsRegions::Refresh() {
  version_ = registry_->version();
  const MemoryRegions regions = registry_->Regions();
  const std::lock_guard lock(mutex_);
  std::vector<Known> known;
  for (const auto& memory : regions) {
    const auto old = std::ranges::find(known_, memory->id, &Known::id);
    if (old == known_.end()) {
      known.push_back({.id = memory->id, .begin = memory->begin, .bytes = memory->bytes});
    } else {
      known.push_back(*old);
      old->region = nullptr;
    }
  }
  for (const Known& each : known_) {
    if (each.region != nullptr) Deregister(each.region);
  }
  known_ = std::move(known);
}

// Takes as long as the region is large. Its owner does not give it back meanwhile, since a request names it.
void VerbsRegions::Register(Known* known) {
  if (num_registered_.load(std::memory_order_relaxed) >= kMost) {
    return NoteRefusal("the device knows " + std::to_string(kMost) + " regions of memory already");
  }
  ibv_mr* region = nullptr;
  const int access = reads_ ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ : 0;
  const Status status = RegisterWithDevice(*hub_, known->begin, known->bytes, access, &region);
  if (status.ok()) ShareWithChildren(hub_->api(), known->begin, known->bytes);
  const std::lock_guard lock(mutex_);
  known->region = region;
  known->state = status.ok() ? State::kUsable : State::kRefused;
  if (status.ok()) num_registered_.fetch_add(1, std::memory_order_relaxed);
  if (status.ok()) {
    known->keys = {known->region->lkey, known->region->rkey};
    Log(LogLevel::kInfo, rank_, "%s moves %zu bytes of registered memory without a copy",
        hub_->device().Describe().c_str(), known->bytes);
  } else {
    NoteRefusal(status.message());
  }
}

void VerbsRegions::Deregister(ibv_mr* region) {
  num_registered_.fetch_sub(1, std::memory_order_relaxed);
  const int error = hub_->api().dereg_mr(region);
  if (error == 0) return;
  Log(LogLevel::kWarn, rank_, "%s does not let go of registered memory: %s", hub_->device().Describe().c_str(),
      std::strerror(error));
}

void VerbsRegions::NoteRefusal(const std::string& why) {
  if (std::exchange(refusal_noted_, true)) return;
  Log(LogLevel::kWarn, rank_, "some registered memory goes through slots, by a copy: %s", why.c_str());
}

void VerbsRegions::Forget(uint64_t id) {
  // A forked child shares the parent's device, which still needs it.
  if (getpid() != maker_) return;
  const std::lock_guard lock(mutex_);
  for (Known& known : known_) {
    if (known.id != id || known.region == nullptr) continue;
    Deregister(known.region);
    known.region = nullptr;
  }
}

}  // namespace annulus
