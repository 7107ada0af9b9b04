// ShmReceiver: the receiving half of an end: takes slices out of the descriptor ring and returns their slots.
//
// A slice's data stays where the sender wrote it, in the shared slot or in registered memory, until Release. Data that
// came inside the descriptor is copied to a cell that this end owns, so that the descriptor is free again at once.
//
// Of a slice in a device's memory the receive tells whether a device will read it there. If not, one copies it into the
// slot that the slice has taken along, and it has arrived when the copy is there.
//
// A slice that was lent is copied from the memory of the peer's process into the receive's landing or, without one,
// into its slot. If the kernel refuses, the slice has not arrived until the peer has copied it.
//
// Threads: as the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/memory/slot_memory.h"
#include "transport/shm/shm_format.h"
#include "transport/shm/shm_peer_devices.h"
#include "transport/shm/shm_peer_memory.h"
#include "transport/shm/shm_regions.h"
#include "transport/transport.h"

namespace annulus {

class ShmReceiver {
 public:
  // `regions` outlives the receiver. `read_notices` passes it some of the peer's notices that have arrived, and returns
  // whether there may be more.
  // `memory`, of the peer's process, and `devices` outlive the receiver; null: there are none. `cell_memory` as
  // TransportConfig::slot_memory.
  ShmReceiver(const ShmDirection& shared, ShmPeerRegions* regions, std::function<bool()> read_notices,
              ShmPeerMemory* memory = nullptr, SlotMemory* cell_memory = nullptr, ShmPeerDevices* devices = nullptr);

  // Queues `recv`. Returns false when as many receives as there are slots are posted or held.
  bool Post(Recv* recv);

  // Completes posted receives with the slices that have arrived. Returns whether there were any. Sets *freed when
  // descriptors were given back, because a sender may wait for them.
  bool Advance(bool* freed, ShmFault* fault);

  // Whether the next slice has arrived, or its ticket is broken. One load.
  bool HasSlice() const { return Ticket() != stale_ticket(); }
  bool HasWork() const { return first_ != nullptr && HasSlice() && !AwaitsLoan(); }
  // Whether the next slice was lent, and only the peer can make it arrive now.
  bool AwaitsLoan() const;
  bool idle() const { return first_ == nullptr; }

  // Returns the next slice, if it has arrived and no receive is posted. The slice stays until PopShort.
  bool PeekShort(ShortPath::Slice* slice, ShmFault* fault);
  // Removes the slice that PeekShort found. Sets *told when the sender was told that there is room.
  void PopShort(bool* told);
  // The same for one that was lent, whose data is copied to `to`. Returns whether that could be done.
  bool PopLent(std::byte* to, bool* told);

  // Gives back the slot or cell of `recv`. Returns whether that was a shared slot, because the sender may wait for it.
  bool Release(Recv* recv);

  size_t cell_bytes() const { return shared_.num_slots * sizeof(Cell); }

  // Completes everything queued with `code`, in order.
  void FailAll(Code code);

 private:
  // In Recv::cookie: the data is in a cell of this end, not in a slot.
  static constexpr uint64_t kCell = uint64_t{1} << 32;
  // In Recv::cookie: the slot stands for data in registered memory.
  static constexpr uint64_t kInPlace = uint64_t{1} << 33;

  struct alignas(SlotMemory::kAlignment) Cell {
    std::byte bytes[ShmDescriptor::kPayloadBytes];
  };

  ShmDescriptor& Next() const { return shared_.ring[taken_ & (shared_.ring_entries - 1)]; }
  uint64_t Ticket() const { return Next().ticket.load(std::memory_order_acquire); }
  // The next descriptor's ticket until the sender writes it again.
  uint64_t stale_ticket() const { return taken_ < shared_.ring_entries ? 0 : taken_ + 1 - shared_.ring_entries; }

  bool CanRead() const { return memory_ != nullptr && memory_->works(); }
  bool ReceiveNext(bool* freed, ShmFault* fault);
  // Copies the next slice's lent data, unless it is not to be had, and that of slices behind it for which receives are
  // posted, all in one call. Sets *told when a claim has changed, for which the sender may sleep.
  bool CopyLent(uint32_t slot, std::byte* to, uint32_t bytes, bool* told);
  // Where to copy the slice that comes `ahead` slices after the next one, for `recv`; its claim says then that it is
  // being read. Returns false, and does nothing, if it has not come, was not lent or is not what it should be.
  bool ClaimAhead(size_t ahead, const Recv& recv, uint32_t* slot, ShmPeerMemory::Part* part);
  std::byte* PlaceOf(const Recv& recv, uint32_t slot) const {
    return recv.landing != nullptr ? recv.landing : shared_.slots + slot * shared_.slot_stride;
  }
  // Only slots that could have been lent: what is reduced, say, takes longer to be read.
  bool IsTimed(const Recv& recv) const { return memory_ != nullptr && recv.landing != nullptr; }
  // Returns whether the data is here.
  bool FillLent(Recv* recv, const ShmDescriptor& descriptor, uint32_t slot, bool* freed, ShmFault* fault);
  void Fill(Recv* recv, const ShmDescriptor& descriptor, uint32_t slot, ShmBegin begin);
  // Where the slice in a slot, whose size has been checked, begins.
  bool FindBegin(const ShmDescriptor& descriptor, uint32_t bytes, ShmBegin* begin, ShmFault* fault) const;
  bool FillInPlace(Recv* recv, const ShmDescriptor& descriptor, uint32_t slot, ShmFault* fault);
  // The same for a device's memory. Returns whether the data is here; false, too, for a fault.
  bool FillOnDevice(Recv* recv, const ShmPlace& place, uint32_t slot, ShmFault* fault);
  // Moves on the copy of the next slice to its slot, which is under way.
  bool FillCopied(Recv* recv, uint32_t slot, ShmFault* fault);
  void Consume(bool* freed);
  void ReturnSlot(uint32_t slot);
  void Pop(Code code);

  const ShmDirection shared_;
  ShmPeerRegions* const regions_;
  const std::function<bool()> read_notices_;
  ShmPeerMemory* const memory_;
  uint64_t taken_ = 0;  // Number of slices taken out of the ring.
  struct {
    uint64_t consumed = 0;  // Number of them that the sender knows of.
    uint64_t returned = 0;  // Number of slots returned.
  } told_;
  struct {
    uint32_t word = 0;   // Slot of the slice that PeekShort found, as in its descriptor.
    uint32_t bytes = 0;  // Its size, which has been checked.
  } peeked_;
  struct {
    ShmPeerDevices* all = nullptr;
    // The next slice, if a device copies it to its slot.
    bool is_copying = false;
    uint32_t slot = 0;
    uint32_t bytes = 0;
  } devices_;
  uint32_t in_use_ = 0;  // Number of receives posted or held.
  ZeroedSlotBlock cell_block_;
  Cell* const cells_;  // One for each slot.
  std::vector<uint32_t> free_cells_;
  struct {
    std::vector<bool> held;              // The sender has lent it to this end, until Release.
    std::vector<uint32_t> read_ahead;    // Bytes of a lent slice that are where its receive wants them; or 0.
    std::vector<uint64_t> regions_held;  // Region ids, of slots that stand for data in place.
  } slots_;                              // By slot.
  Recv* first_ = nullptr;
  Recv* last_ = nullptr;
};

}  // namespace annulus
