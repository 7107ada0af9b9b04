// VerbsReads: slices that the peer has left in its own memory (VerbsHeader::placed), and the READs with which the
// devices of this end fetch them.
//
// A READ needs to know the receive that its slice is for. It goes into the landing of that, where the device knows this
// memory, and otherwise into the slot that the peer has chosen for the slice, which is free. So only this end's device
// writes to user memory, and nothing writes there once it has stopped. READs of a rail begin in the order of their
// slices, as many at a time as the devices of both ends take; the others wait here.
//
// Threads: as the endpoint, but for the totals. Nothing allocates after construction.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/verbs/device/verbs_regions.h"
#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/rail/verbs_queue_pair.h"
#include "transport/verbs/rail/verbs_recv_slots.h"
#include "transport/verbs/rail/verbs_returns.h"

namespace annulus {

class VerbsReads {
 public:
  // What a rail has read.
  struct Counts {
    uint64_t slices = 0;
    uint64_t bytes = 0;
    uint64_t landed_bytes = 0;  // Those of them that went into landings.
  };
  // A slice whose READ has not begun.
  struct Waiting {
    uint32_t slot = 0;
    uint32_t number = 0;
    uint32_t bytes = 0;
  };

  // The pointers outlive it.
  VerbsReads(size_t rails, VerbsRecvSlots* recv_slots, VerbsFault* fault)
      : recv_slots_(recv_slots),
        fault_(fault),
        slices_(recv_slots->count()),
        rails_(rails, Rail(recv_slots->count())) {}

  // What a rail has: its queue pair, and the registered memory that its device knows.
  void Attach(size_t rail, VerbsQueuePair* pair, const VerbsPortRegions& regions) {
    rails_[rail].pair = pair;
    rails_[rail].regions = regions;
  }
  // `key`: local key of the slots. `most`: READs under way at a time; 0: none is allowed.
  void Allow(size_t rail, uint32_t key, uint32_t most) {
    rails_[rail].key = key;
    rails_[rail].most = most;
  }
  bool allowed(size_t rail) const { return rails_[rail].most > 0; }

  // A slice waits in the peer's memory. Its slot was free, and its bytes fit there.
  void Add(size_t rail, uint32_t slot, const VerbsHeader& header, const VerbsPlace& place);

  // Whether any READ has yet to begin.
  bool any_waiting() const { return num_waiting_ > 0; }
  size_t num_rails() const { return rails_.size(); }
  // The slice of a rail whose READ is to begin next; false when there is none, or no more READs may be under way.
  bool Next(size_t rail, Waiting* next) const;
  // Begins it: Post hands it to the device. `landing`: that of its receive, with room for the slice; may be null.
  void Begin(size_t rail, std::byte* landing);
  // Posts those that have begun, by one call of each device.
  void Post();

  // A READ has completed, or failed.
  void OnCompletion(uint32_t slot);
  void OnFailure(uint32_t slot) { End(slot, State::kNone); }
  // The devices have stopped: no READ writes to registered memory any more, though none may complete.
  void LetGoOfLandings();

  // Whether a rail has READs under way.
  bool reads_on(size_t rail) const { return rails_[rail].under_way > 0; }
  // Whether the slice of that slot is being read; whether it has been.
  bool is_under_way(uint32_t slot) const { return slices_[slot].state == State::kUnderWay; }
  bool IsDone(uint32_t slot) const { return slices_[slot].state == State::kDone; }
  // Forgets such a slice. Returns the landing that it is in; null when it is in its slot.
  std::byte* Finish(uint32_t slot);

  // Whether the device may be writing to landings.
  bool writes_landings() const { return landings_under_way_ > 0; }
  const Counts& counts(size_t rail) const { return rails_[rail].counts; }
  // Over all rails: bytes read, and those of them that went into landings. Any thread.
  uint64_t read_bytes() const { return read_bytes_.load(std::memory_order_relaxed); }
  uint64_t landed_bytes() const { return landed_bytes_.load(std::memory_order_relaxed); }

 private:
  enum class State : uint8_t { kNone, kWaiting, kUnderWay, kDone };
  struct Slice {
    State state = State::kNone;
    size_t rail = 0;
    uint32_t number = 0;
    uint32_t bytes = 0;
    VerbsPlace place;
    std::byte* landing = nullptr;  // Null: it goes into its slot.
    VerbsUse use = kNoVerbsUse;    // Use of the landing's region, until the slice has been read.
    int flushed_gpu = -1;          // The GPU that has to be told of what was read; -1: none.
    VerbsQueuePair::Read read;
  };
  struct Rail {
    explicit Rail(size_t slots) : waiting(slots) {}

    VerbsQueuePair* pair = nullptr;
    VerbsPortRegions regions;
    uint32_t key = 0;
    uint32_t most = 0;
    uint32_t under_way = 0;
    // READs that have begun and are not posted, a chain.
    ibv_send_wr* first_unposted = nullptr;
    ibv_send_wr* last_unposted = nullptr;
    std::vector<uint32_t> waiting;  // Slots, a ring.
    size_t first = 0;
    size_t size = 0;
    Counts counts;
  };

  void End(uint32_t slot, State state);
  void LetGoOfLanding(Slice* slice);

  VerbsRecvSlots* const recv_slots_;
  VerbsFault* const fault_;
  std::vector<Slice> slices_;  // By slot.
  std::vector<Rail> rails_;
  size_t num_waiting_ = 0;
  size_t landings_under_way_ = 0;
  std::atomic<uint64_t> read_bytes_ = 0;
  std::atomic<uint64_t> landed_bytes_ = 0;
};

}  // namespace annulus
