// VerbsRegions: the registered memory of this process (transport/memory/memory.h), and the memory of its GPUs
// (transport/memory/device_exports.h), as the RDMA devices of one communicator know it. A region is registered with a
// device when it is first used. Registered memory is dropped before its owner gets it back. A GPU's memory, whose end
// nobody tells, is another region when something else was allocated there; what was freed is dropped when another one
// is first used, and once a second as long as somebody drives the links. Peers may read regions, where they read slices
// at all, but never write to them.
//
// The devices know a bounded number of regions. Requests name theirs by a use, which counts. Where there is no room,
// the region that was least recently used makes some, among those without uses and promises. For a GPU's memory that a
// device has no room for, only others of GPUs do: what limits it is not the limit on locked memory. Registering takes
// the longer the larger a region is. So one that needs room gets it only once as many bytes as it has were copied:
// regions that alternate then cost what copies do and, as a rule, no more than that again.
//
// Threads: all is for the one that drives the communicator, and locks nothing as long as no region is registered or
// given back. Only Forget comes from any thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/memory/device_exports.h"
#include "transport/memory/memory.h"
#include "transport/verbs/device/verbs_hub.h"
#include "transport/verbs/device/verbs_network.h"
#include "transport/verbs/verbs_settings.h"

namespace annulus {

// A device's keys of a region, for this process and for peers.
struct VerbsKeys {
  uint32_t local = 0;
  uint32_t remote = 0;
};

// A set of the ports of a communicator, one bit each.
using VerbsPortSet = uint32_t;

// A region that requests name. Plain: whoever takes one lets go of it, once.
using VerbsUse = uint16_t;
inline constexpr VerbsUse kNoVerbsUse = UINT16_MAX;

// A region that will be used: it makes room for no other. Unlike a use it does not keep a GPU's memory that was freed,
// and means nothing once that, or any other region, is gone. Plain: whoever gets one gives it back, once.
struct VerbsPromise {
  VerbsUse entry = kNoVerbsUse;  // kNoVerbsUse: there is none.
  uint64_t id = 0;
};

// The memory of GPUs.
struct VerbsGpuMemory {
  const DeviceExports* exports = nullptr;  // Null: there is none.
  VerbsDeviceMemory wish = VerbsDeviceMemory::kAuto;
  const void* links = nullptr;  // As DeviceExports::TellWay takes it.
};

class VerbsRegions;

// The regions of a communicator, as the device of one port knows them. The pointer outlives it; null: there are none.
struct VerbsPortRegions {
  VerbsRegions* all = nullptr;
  size_t port = 0;

  VerbsPortSet bit() const { return VerbsPortSet{1} << port; }
};

class VerbsRegions final : private MemoryHolder {
 public:
  // Most regions that the devices know at a time; what lies in others goes through slots.
  static constexpr size_t kMost = 256;

  // `hubs`: one for each port. `registry` and what `gpus` names outlive it; null: there is no such memory. `rank` is
  // for the log. `reads`: peers read in the regions, and what is read from theirs is written to registered memory.
  VerbsRegions(std::vector<std::shared_ptr<VerbsHub>> hubs, const MemoryRegistry* registry, const VerbsGpuMemory& gpus,
               int rank, bool reads);
  ~VerbsRegions();
  VerbsRegions(const VerbsRegions&) = delete;
  VerbsRegions& operator=(const VerbsRegions&) = delete;

  // A use of the region with [data, data + bytes), which the devices of all `ports` know from now on until it is let go
  // of; kNoVerbsUse: they do not, at least for now. `is_copied`: the data will then be copied, which counts for the
  // region. The first refusal of a device is logged.
  VerbsUse Acquire(VerbsPortSet ports, const std::byte* data, size_t bytes, bool is_copied = true);
  // The same for what peers send, for one port. A GPU's memory is none if the GPU does not see what is written there.
  VerbsUse AcquireLanding(const VerbsPortRegions& of, const std::byte* data, size_t bytes);
  void LetGo(VerbsUse use);
  // As Acquire, but a promise.
  VerbsPromise Promise(VerbsPortSet ports, const std::byte* data, size_t bytes, bool is_copied);
  void Break(const VerbsPromise& promise);
  // Keys of a region in use. Keys that no device accepts when its owner has given it back all the same.
  VerbsKeys KeysOf(VerbsUse use, size_t port);

  // Whether a region in use is a GPU's.
  bool IsGpus(VerbsUse use) const { return entries_[use].is_gpus; }
  // The GPU that needs a flush to see what is written to a region in use; -1: there is none.
  int FlushedGpu(VerbsUse use) const {
    return entries_[use].writes == DeviceWrites::kFlushed ? entries_[use].device : -1;
  }
  // As DeviceExports does.
  Status FlushWrites(int gpu) const { return gpus_.exports->FlushWrites(gpu); }
  Status CopyOut(VerbsUse use, const std::byte* data, size_t bytes, std::byte* slots, uint32_t* done) const {
    return gpus_.exports->CopyOut(entries_[use].device, data, bytes, slots, done);
  }
  Status CheckCopies(VerbsUse use) const { return gpus_.exports->CheckCopies(entries_[use].device); }
  // Its GPU's number, for AwaitCopies.
  int DeviceOf(VerbsUse use) const { return entries_[use].device; }
  void AwaitCopies(int device) const { gpus_.exports->AwaitCopies(device); }

  // Whether Acquire and AcquireLanding may succeed for memory of GPUs, by the libraries at hand and the setting.
  bool may_use_gpus() const { return gpus_.exports != nullptr; }
  // How memory of GPUs is used by now: "without a copy", "by copies: ...", some so and some so, or none without a copy
  // yet; "" where there is none. Any thread.
  std::string GpusText();
  // Drops what GPUs have freed, if it is time to. For whoever drives a link, often.
  void SweepIfDue() {
    if (!gpus_.known.empty() && ++gpus_.rounds % kRoundsPerClock == 0) SweepByClock();
  }
  // Whether Acquire may succeed, now or later; asks no device.
  bool MayAcquire(VerbsPortSet ports, const std::byte* data, size_t bytes);

 private:
  static constexpr uint32_t kNoEntry = UINT32_MAX;
  // Rounds, of some 100 ns each, between two looks at the clock.
  static constexpr uint32_t kRoundsPerClock = 256;

  // A region. Does not keep the memory and its descriptor alive.
  struct Known {
    uint64_t id = 0;
    std::byte* begin = nullptr;
    size_t bytes = 0;
    uint32_t entry = kNoEntry;  // Its place among entries_, while a device knows it.
    VerbsPortSet refused = 0;   // Ports whose devices refuse it for good.
    bool lacks_memory = false;  // A device has refused it for lack of memory that others have.
    uint64_t copied_bytes = 0;  // What was copied while it was not known.
    bool is_gpus = false;
    int device = -1;  // The GPU's number.
  };
  // A region that devices know, or that requests name though its owner has given it back.
  struct Entry {
    uint64_t id = 0;  // 0: given back, or there is none.
    bool is_gpus = false;
    int device = -1;
    DeviceWrites writes = DeviceWrites::kSeen;  // What the GPU sees of what READs write there.
    VerbsPortSet ports = 0;                     // Those whose devices know it.
    uint32_t uses = 0;
    uint32_t promises = 0;
    uint64_t used = 0;  // When it was last taken, in uses of all.
    std::array<VerbsKeys, kMostVerbsPorts> keys{};
    std::array<ibv_mr*, kMostVerbsPorts> regions{};  // Guarded by mutex_, as id is for others than the driver.
  };
  // What is known of GPUs' memory. For the thread that drives, but for the texts.
  struct Gpus {
    VerbsGpuMemory given;
    const DeviceExports* exports = nullptr;  // Those given; null: there is no such memory, or it is not used.
    std::map<int, VerbsPortSet> refused;     // By number of the GPU: ports whose devices take none of its memory.
    std::set<int> noted;                     // GPUs of which a refusal was logged.
    std::vector<Known> known;                // Allocations that were asked for.
    uint32_t rounds = 0;
    Nanoseconds next_sweep = 0;
    bool others_told = false;  // `others` is set.
    uint64_t waiting = 0;      // The allocation that `lacking` tells of; 0: none.
    // What is moved without a copy, and by copies, as GpusText tells it; "": nothing so far. Guarded by mutex_.
    std::string straight;
    std::string copied;   // What was refused for good.
    std::string others;   // Memory that cannot be exported.
    std::string lacking;  // What devices have no room for as yet.
  };

  void Forget(uint64_t id) override;
  // The region with that memory, for devices of `ports`; null: there is none.
  Known* At(VerbsPortSet ports, const std::byte* data, size_t bytes);
  // The same of a GPU's memory.
  Known* GpusAt(VerbsPortSet ports, const std::byte* data, size_t bytes);
  // Forgets what has been freed: what `with` lies over, and all that the devices know and no request names.
  void ForgetFreed(const DeviceRange& with);
  void SweepByClock();
  // Some memory of GPUs is moved so from now on. `part`: one of the texts of gpus_.
  void TellGpus(std::string* part, std::string text);
  // An allocation waits for room, or does no longer.
  void TellLacking(uint64_t id, std::string text);
  void TellLacksNothing(uint64_t id);
  // Why some is moved by copies; "": none is. With mutex_ held.
  std::string WhyCopied() const;
  // Whether card and GPU are near enough; how near, or why not, in *text.
  bool IsNear(size_t port, const Known& known, std::string* text) const;
  void Refresh();
  bool Knows(const Known& known, VerbsPortSet ports) const {
    return known.entry != kNoEntry && (entries_[known.entry].ports & ports) == ports;
  }
  // Lets the devices know the region, unless as much of it as it has must be copied first. Returns whether they do.
  bool Register(Known* known, VerbsPortSet ports);
  // The same for one port; `is_due`: others may have to make room.
  bool RegisterWith(size_t port, Known* known, bool is_due);
  Status Ask(size_t port, Known* known);
  Status AskFor(size_t port, const Known& known, ibv_mr** region) const;
  void NoteRefusal(const Known& known, const std::string& why);
  // Whether the devices know other regions that could make room for it.
  bool KnowsOthers(const Known& known) const;
  // Drops regions without uses and promises other than `kept`, the least recently used one first: one at least, and as
  // many as have so many bytes. `gpus_alone`: only those of GPUs. Returns false when there was none.
  bool MakeRoom(size_t bytes, const Known* kept, bool gpus_alone);
  Known* LeastRecentlyUsed(const Known* kept, bool gpus_alone);
  // The devices know the region no longer.
  void Drop(uint32_t entry);
  // With mutex_ held.
  void Deregister(Entry* entry);

  const std::vector<std::shared_ptr<VerbsHub>> hubs_;  // By port.
  const MemoryRegistry* const registry_;
  const int rank_;
  const bool reads_;
  const pid_t maker_;
  bool refusal_noted_ = false;
  uint64_t num_uses_ = 0;      // Ever taken.
  uint64_t num_dropped_ = 0;   // Regions that have made room.
  size_t num_registered_ = 0;  // Entries with an id.
  uint64_t version_ = 0;       // Version of the registry when it was last read.
  std::vector<Known> known_;   // Registered memory, by address.
  Gpus gpus_;
  std::mutex mutex_;  // For changes of entries_, and for Entry::regions.
  std::vector<Entry> entries_;
};

}  // namespace annulus
