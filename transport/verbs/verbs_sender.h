// VerbsSender: the sending half of an end: lends slots, writes slices into the peer's slots, and completes sends.
//
// Slices leave from slots, or from registered memory where the owner has them, which costs no copy. The device then
// gathers the header from here and the data from there.
//
// Three things bound what is under way: free slots at the peer, receives that the peer has posted, and room in the
// device's send queue. The last two are each rail's own (VerbsOutbox). A slice takes the rail that has them and that
// has the fewest bytes under way, so a slow rail gets less; all parts of a slice take that rail. The first rail is
// taken where it makes no difference.
//
// Large slices in registered memory stay there, where the peer takes them so: only a header goes, with the place, and
// the peer's device reads the data (VerbsReads). Such a slice waits until all of it is ready. Its send completes when
// the peer says that it has taken it, because until then the peer may read.
//
// A sender that keeps (VerbsKept) has what the peer's process may lack, in case that the link goes on elsewhere. Slots
// are then in use until the peer has told that it took what they held, and sends from registered memory complete only
// then, or once they are copied into a free slot. Those from a GPU's memory are copied only if they have to be sent
// again. Other sends complete as usual.
//
// Threads: as the endpoint. Nothing allocates after construction, but for copies of a GPU's memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/continuable.h"
#include "transport/transport.h"
#include "transport/verbs/device/verbs_regions.h"
#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/rail/verbs_outbox.h"
#include "transport/verbs/rail/verbs_returns.h"
#include "transport/verbs/rail/verbs_target.h"
#include "transport/verbs/verbs_copies.h"
#include "transport/verbs/verbs_kept.h"
#include "transport/verbs/verbs_slots.h"

namespace annulus {

class VerbsSender {
 public:
  // `least_part`: smallest part of a slice that is sent before the rest is ready, in bytes. `memory`: that of the
  // slots. The pointers outlive it.
  VerbsSender(int slots, size_t slot_bytes, uint32_t least_part, std::byte* memory, std::vector<VerbsOutbox*> rails,
              VerbsTarget* target, VerbsReturns* returns, VerbsFault* fault);

  // From now on it keeps; before the first send.
  void Keep() { kept_ = VerbsKept(static_cast<int>(slots_.count()), rails_.size(), true); }

  bool keeps() const { return kept_.keeps(); }

  // From now on the peer reads slices of registered memory that have so many bytes or more; before the first send.
  void LetPeerRead(uint32_t least_bytes) { least_placed_ = least_bytes; }

  std::byte* LendSlot() { return slots_.Lend(); }  // Null when all are lent or posted.
  // Whether Post accepts [data, data + bytes), which is no slot. Small slices are better copied.
  bool SendsFrom(const std::byte* data, size_t bytes);
  // Errors: kInvalidArgument.
  Status Post(Send* send);

  // Completes sends, frees slots, and, if it `transmits`, hands the device what is ready and has room, up to a heavy
  // chain for each rail. Returns whether it completed or freed any, or may have left something.
  bool Advance(bool transmits);
  // Returns credits by a message of their own, if there is room for it: what is common, and the receives of that rail.
  // `half_of_receives`: at least so many are returned.
  void SendUpdate(VerbsOutbox* rail, bool half_of_receives);
  // Asks for a completion of all that was handed over.
  void Flush();

  // Completes sends, in order, and frees slots. Returns whether there were any. `is_stopped`: the device reads nothing
  // any more.
  bool Complete(bool is_stopped = false);
  // Those that are being carried are no longer.
  void FailAll(Code code);

  // Whether the first send waits for nothing but the peer's word, and could be copied into a free slot instead.
  bool CanCopyLent() const;
  // Copies and completes it.
  void CopyLent();

  // The device has stopped, and the peer has received that many slices, modulo 2^32. What it lacks is carried from now
  // on, as Continuable says. Returns false when it cannot have received so many.
  bool BeginCarrying(uint32_t slices);
  Status NextToCarry(bool only_completed, CarriedSlice* slice);
  bool is_copying() const { return copies_.is_under_way(); }
  void OnCarried();
  bool owes_completed() const { return kept_.completed() > 0; }

  // Whether sends were posted that are not completed.
  bool has_sends() const { return queue_.first != nullptr; }
  // Whether some of them leave from their owner's memory, which the device may be reading, or the peer's.
  bool reads_owners_memory() const { return queue_.in_place > 0; }
  // Whether the device here reads there unless it stops.
  bool must_stop() const { return queue_.in_place > 0 && !all_acknowledged(); }
  // Whether a send waits for nothing but the peer's word, so that the device here has nothing more to do for it, and
  // does not notice when the peer's is gone.
  bool AwaitsWord() const;
  // Whether Advance would do something.
  bool HasWork() const { return NextRail() != nullptr || CanComplete() || CanDrop(); }
  bool all_acknowledged() const;

 private:
  // How far a slice is that is handed over in parts.
  struct Part {
    bool begun = false;
    VerbsOutbox* rail = nullptr;
    uint32_t slot = 0;   // Its slot at the peer.
    uint32_t bytes = 0;  // What is handed over.
  };
  // In Send::cookie, above: the use of its region, when its data are in no slot. Once it is handed over, below: the
  // messages of its rail up to it, which are as many requests; that the device reads its data no more; that the peer
  // reads them; the rail.
  static constexpr uint64_t kCopied = uint64_t{1} << 32;
  static constexpr uint64_t kPlaced = uint64_t{1} << 33;
  static constexpr int kRailShift = 40;
  static constexpr int kUseShift = 48;

  // More than there are slices whose place is chosen and that are not posted: what an engine works on at a time. Some
  // are only asked about and never sent, whose promises others replace.
  static constexpr size_t kMostPromises = 64;

  struct Queue {
    Send* first = nullptr;
    Send* last = nullptr;
    int in_place = 0;          // Number of sends that are in no slot.
    int placed = 0;            // Number of those among them whose place the peer knows.
    uint32_t completed = 0;    // Number of sends that left it, modulo 2^32.
    Send* unposted = nullptr;  // The first send that is not handed over whole.
  };

  struct Regions {
    VerbsRegions* all = nullptr;
    VerbsPortSet ports = 0;  // Those of the rails.
    // Those of which SendsFrom has said so, until a send from there is posted: the latest ones, a ring.
    std::array<VerbsPromise, kMostPromises> promises{};
    size_t next = 0;
  };
  VerbsOutbox& RailOf(const Send& send) const { return *rails_[(send.cookie >> kRailShift) & 0xff]; }
  // Whether the peer is to read it.
  bool IsForPeer(const Send& send) const {
    return least_placed_ > 0 && send.bytes >= least_placed_ && !slots_.Has(send.data);
  }
  // Whether the device has said that it reads the send's data no more.
  bool IsRead(const Send& send) const;
  static VerbsUse UseOf(const Send& send) { return static_cast<VerbsUse>(send.cookie >> kUseShift); }
  // The region of that use was promised; the promise is kept.
  void KeepPromise(VerbsUse use);
  void DropPromises();
  // Whether its data lie in a GPU's memory, which the CPU cannot read.
  bool IsGpus(const Send& send) const { return !slots_.Has(send.data) && regions_.all->IsGpus(UseOf(send)); }
  // The rail for a new slice of so many bytes; null when none can take one.
  VerbsOutbox* FreeRail(uint32_t bytes) const;
  // The rail over which the first send that is not handed over whole goes on now; null when it cannot.
  VerbsOutbox* NextRail() const;
  // Returns whether it has handed over all that can go; more is left for the next call otherwise.
  bool Transmit();
  bool CanComplete() const { return queue_.first != queue_.unposted && IsDone(*queue_.first, false); }
  // Whether the first slice that is kept need not be any more.
  bool CanDrop() const;
  void DropFirst();
  bool IsDone(const Send& send, bool is_stopped) const;
  // Whether the peer has said that it has taken that slice of those kept.
  bool IsTaken(uint32_t kept) const {
    return VerbsReached(target_->taken_slices(), target_->sent_slices() - kept_.size() + kept + 1);
  }
  void AddShort(Send* send, VerbsOutbox* rail);
  void AddFirst(Send* send, VerbsOutbox* rail);
  void AddPart(Send* send);
  // Tells the peer where the slice is.
  void AddPlace(Send* send, VerbsOutbox* rail);
  // The slice is handed over whole, all of it to that rail. `how`: kCopied, kPlaced or 0.
  void FinishPosting(Send* send, const VerbsOutbox& rail, uint64_t how);
  VerbsHeader HeaderOf(const Send* send, VerbsOutbox* rail, bool is_placed = false);
  // Where `bytes` of a send's data are, as the rail's device knows it.
  VerbsPiece PieceOf(const Send& send, size_t begin, size_t bytes, const VerbsOutbox& rail) const;
  // Lets a request of the part's rail write at `offset` of its slot, and asks for a completion.
  void Aim(ibv_send_wr* request, const Part& part, size_t offset) const;
  void Pop(Code code);

  const uint32_t least_part_;
  uint32_t least_placed_ = 0;  // Smallest slice that the peer reads, in bytes; 0: none.
  const std::vector<VerbsOutbox*> rails_;
  Regions regions_;
  VerbsTarget* const target_;
  VerbsReturns* const returns_;
  VerbsFault* const fault_;
  VerbsSlots slots_;
  uint32_t sequence_ = 0;  // Number of the next slice, modulo 2^32.
  Queue queue_;
  Part part_;  // The part of queue_.unposted that is handed over.
  VerbsKept kept_;
  uint32_t carried_ = 0;  // Slices that NextToCarry has told and Carried has not ended.
  VerbsCopies copies_;    // Copies of those that lie in a GPU's memory.
};

}  // namespace annulus
