#include "transport/verbs/device/verbs_regions.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.h"
#include "transport/verbs/device/verbs_memory.h"

namespace annulus {

VerbsRegions::VerbsRegions(std::shared_ptr<VerbsHub> hub, const MemoryRegistry* registry, int rank)
    : hub_(std::move(hub)), registry_(registry), rank_(rank), maker_(getpid()) {
  if (registry_ != nullptr) registry_->AddHolder(this);
}

VerbsRegions::~VerbsRegions() {
  if (registry_ != nullptr) registry_->RemoveHolder(this);
  for (const Known& known : known_) {
    if (known.region != nullptr) Deregister(known.region);
  }
}

bool VerbsRegions::Find(const std::byte* data, size_t bytes, uint32_t* key) {
  if (registry_ == nullptr) return false;
  if (registry_->version() != version_) Refresh();
  for (Known& known : known_) {
    if (data < known.begin || bytes > known.bytes || static_cast<size_t>(data - known.begin) > known.bytes - bytes) {
      continue;
    }
    if (known.state == State::kNew) Register(&known);
    *key = known.key;
    return known.state == State::kUsable;
  }
  return false;
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

// Takes as long as the region is large. Its owner does not give it back meanwhile, since it is being sent from.
void VerbsRegions::Register(Known* known) {
  if (num_registered_.load(std::memory_order_relaxed) >= kMost) {
    return NoteRefusal("the device knows " + std::to_string(kMost) + " regions of memory already");
  }
  ibv_mr* region = nullptr;
  // The device only reads it.
  const Status status = RegisterWithDevice(*hub_, known->begin, known->bytes, 0, &region);
  const std::lock_guard lock(mutex_);
  known->region = region;
  known->state = status.ok() ? State::kUsable : State::kRefused;
  if (status.ok()) num_registered_.fetch_add(1, std::memory_order_relaxed);
  if (status.ok()) {
    known->key = known->region->lkey;
    Log(LogLevel::kInfo, rank_, "%s sends %zu bytes of registered memory without a copy",
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
  Log(LogLevel::kWarn, rank_, "some registered memory is sent through slots, by a copy: %s", why.c_str());
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
