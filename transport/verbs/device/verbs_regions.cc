#include "transport/verbs/device/verbs_regions.h"

#include <unistd.h>

#include <algorithm>
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
    if (known.region != nullptr) hub_->api().dereg_mr(known.region);
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
  MemoryRegions regions = registry_->Regions();
  if (regions.size() > kMost) {
    NoteRefusal("more than " + std::to_string(kMost) + " regions of memory are registered");
    regions.resize(kMost);
  }
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
    if (each.region != nullptr) hub_->api().dereg_mr(each.region);
  }
  known_ = std::move(known);
}

void VerbsRegions::Register(Known* known) {
  const std::lock_guard lock(mutex_);
  // The device only reads it.
  const Status status = RegisterWithDevice(*hub_, known->begin, known->bytes, 0, &known->region);
  known->state = status.ok() ? State::kUsable : State::kRefused;
  if (status.ok()) {
    known->key = known->region->lkey;
    Log(LogLevel::kInfo, rank_, "%s sends %zu bytes of registered memory without a copy",
        hub_->device().Describe().c_str(), known->bytes);
  } else {
    NoteRefusal(status.message());
  }
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
    hub_->api().dereg_mr(known.region);
    known.region = nullptr;
  }
}

}  // namespace annulus
