// ShmReceiver: the receiving half of an end: takes slices out of the descriptor ring, returns their slots.
//
// A slice's data stays where the sender wrote it, in the shared slot or in registered memory, until Release. Data that
// came inside the descriptor is copied to a cell of this end's own, so that the descriptor is free again at once.
//
// Threads: as the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/shm/shm_format.h"
#include "transport/shm/shm_regions.h"
#include "transport/transport.h"

namespace annulus {

class ShmReceiver {
 public:
  // `regions` outlives the receiver. `read_notices` makes it know of some of what the peer has told so far, and
  // returns whether there may be more.
  ShmReceiver(const ShmDirection& shared, ShmPeerRegions* regions, std::function<bool()> read_notices);

  // Queues `recv`. False: as many as there are slots are posted or held.
  bool Post(Recv* recv);

  // Completes posted receives with the slices that are there; whether there was anything. Sets *freed when descriptors
  // were given back, which a sender may wait for.
  bool Advance(bool* freed, ShmFault* fault);

  // Whether the next slice is there, or what lies in its place is broken. One load.
  bool HasSlice() const { return Ticket() != stale_ticket(); }
  bool HasWork() const { return first_ != nullptr && HasSlice(); }
  bool idle() const { return first_ == nullptr; }

  // The next slice, if it is there and no receive is posted. It stays until TakeShort.
  bool PeekShort(ShortPath::Slice* slice, ShmFault* fault);
  // Takes what PeekShort found, and returns whether it came inside its descriptor. Sets *told when the sender was told
  // of room.
  bool TakeShort(bool* told);

  // Gives back what `recv` holds; whether that was a shared slot, which the sender may wait for.
  bool Release(Recv* recv);

  size_t cell_bytes() const { return shared_.num_slots * sizeof(Cell); }

  // Completes everything queued with `code`, in order.
  void FailAll(Code code);

 private:
  static constexpr uint64_t kCell = uint64_t{1} << 32;     // In Recv::cookie: an own cell, not a slot.
  static constexpr uint64_t kInPlace = uint64_t{1} << 33;  // The slot stands for data in registered memory.

  struct alignas(64) Cell {
    std::byte bytes[ShmDescriptor::kPayloadBytes];
  };

  ShmDescriptor& Next() const { return shared_.ring[taken_ & (shared_.ring_entries - 1)]; }
  uint64_t Ticket() const { return Next().ticket.load(std::memory_order_acquire); }
  // What the next descriptor says until the sender writes it again.
  uint64_t stale_ticket() const { return taken_ < shared_.ring_entries ? 0 : taken_ + 1 - shared_.ring_entries; }

  bool Take(ShmFault* fault);
  void Fill(Recv* recv, const ShmDescriptor& descriptor, uint32_t slot);
  bool FillInPlace(Recv* recv, const ShmDescriptor& descriptor, uint32_t slot, ShmFault* fault);
  void Consume(bool* freed);
  void ReturnSlot(uint32_t slot);
  void Pop(Code code);

  const ShmDirection shared_;
  ShmPeerRegions* const regions_;
  const std::function<bool()> read_notices_;
  uint64_t taken_ = 0;             // Slices taken out of the ring.
  uint64_t consumed_told_ = 0;     // How many of them the sender knows of.
  uint64_t returned_ = 0;          // Slots returned.
  uint32_t peeked_ = 0;            // The slot of the slice that PeekShort found, or kShmInline.
  uint32_t in_use_ = 0;            // Receives posted or held.
  std::unique_ptr<Cell[]> cells_;  // As many as there are slots.
  std::vector<uint32_t> free_cells_;
  std::vector<bool> held_;              // By slot: lent to this end by the sender, until Release.
  std::vector<uint64_t> regions_held_;  // By slot that stands for data in place: whose.
  Recv* first_ = nullptr;
  Recv* last_ = nullptr;
};

}  // namespace annulus
