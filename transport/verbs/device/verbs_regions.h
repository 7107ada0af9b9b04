// VerbsRegions: the registered memory of this process (transport/memory/memory.h) as the device of one communicator
// knows it. A region is registered with the device when it is first used, and dropped before its owner gets its memory
// back. Peers may read it, where they read slices at all, but never write to it.
//
// Threads: Find is for the one that drives the communicator, and locks nothing as long as no memory is registered or
// given back. The rest is for any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/memory/memory.h"
#include "transport/verbs/device/verbs_hub.h"

namespace annulus {

// The device's keys of a region, for this process and for peers.
struct VerbsKeys {
  uint32_t local = 0;
  uint32_t remote = 0;
};

class VerbsRegions final : private MemoryHolder {
 public:
  // Most regions that the device knows at a time; what lies in others goes through slots. None makes room for another:
  // requests that name it may be under way.
  static constexpr size_t kMost = 256;

  // `registry` outlives it; null: there is no such memory. `rank` is for the log. `reads`: peers read in the regions,
  // and what is read from theirs is written to them.
  VerbsRegions(std::shared_ptr<VerbsHub> hub, const MemoryRegistry* registry, int rank, bool reads);
  ~VerbsRegions();
  VerbsRegions(const VerbsRegions&) = delete;
  VerbsRegions& operator=(const VerbsRegions&) = delete;

  // Whether the device can use [data, data + bytes), with these keys. A device that refuses is asked once per region,
  // and the first refusal is logged.
  bool Find(const std::byte* data, size_t bytes, VerbsKeys* keys);
  // Whether Find may succeed; asks no device.
  bool MayFind(const std::byte* data, size_t bytes);

 private:
  enum class State { kNew, kUsable, kRefused };
  // A region. Does not keep the memory and its descriptor alive.
  struct Known {
    uint64_t id = 0;
    std::byte* begin = nullptr;
    size_t bytes = 0;
    State state = State::kNew;
    VerbsKeys keys{};
    ibv_mr* region = nullptr;  // Null unless the device knows it; guarded by mutex_.
  };

  void Forget(uint64_t id) override;
  // The region with that memory; null: there is none.
  Known* At(const std::byte* data, size_t bytes);
  void Refresh();
  void Register(Known* known);
  void Deregister(ibv_mr* region);
  void NoteRefusal(const std::string& why);

  const std::shared_ptr<VerbsHub> hub_;
  const MemoryRegistry* const registry_;
  const int rank_;
  const bool reads_;
  const pid_t maker_;
  bool refusal_noted_ = false;
  std::atomic<size_t> num_registered_ = 0;
  uint64_t version_ = 0;  // Version of the registry when it was last read.
  std::mutex mutex_;      // For changes of known_, and for Known::region.
  std::vector<Known> known_;
};

}  // namespace annulus
