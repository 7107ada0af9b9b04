#include "tests/verbs/provider/simulated_forks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

namespace annulus {
namespace {

SimulatedNic& Device() { return SimulatedNic::Get(); }

struct Pages {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

Pages PagesOf(const NicRegion& region) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(region.addr);
  return {begin / page * page, (begin + region.length + page - 1) / page * page};
}

void Advise(const Pages& pages, int advice) {
  (void)madvise(reinterpret_cast<void*>(pages.begin), pages.end - pages.begin, advice);
}

ibv_fork_status ForkStatus() {
  const std::lock_guard lock(Device().mutex());
  if (Device().machine.copies_on_fork) return IBV_FORK_UNNEEDED;
  return Device().protects ? IBV_FORK_ENABLED : IBV_FORK_DISABLED;
}

int InitializeForks() {
  const std::lock_guard lock(Device().mutex());
  if (Device().protects || Device().machine.copies_on_fork) return 0;
  if (Device().protects_too_late) return EINVAL;
  Device().protects = Device().machine.fork_error == 0;
  return Device().machine.fork_error;
}

}  // namespace

void NoteMemory(SimulatedNic* device, NicRegion* region) {
  if (!device->protects) {
    device->protects_too_late = true;
    if (region != nullptr && !device->machine.copies_on_fork) ++device->counts.unsafe_regions;
    return;
  }
  if (region == nullptr) return;
  region->is_protected = true;
  Advise(PagesOf(*region), MADV_DONTFORK);
}

void NoteEnd(SimulatedNic* device, const NicRegion& region) {
  if (!region.is_protected) return;
  const Pages pages = PagesOf(region);
  const bool is_in_use = std::ranges::any_of(device->regions, [&](const auto& each) {
    const Pages others = PagesOf(*each.second);
    return each.second->is_protected && others.begin < pages.end && pages.begin < others.end;
  });
  if (!is_in_use) Advise(pages, MADV_DOFORK);
}

void SetForkFunctions(VerbsApi* api) {
  api->fork_init = InitializeForks;
  api->is_fork_initialized = ForkStatus;
}

}  // namespace annulus
