// VerbsInbox: the receiving half of a rail: keeps receives posted to the device, into cells, checks each message that
// completes, and keeps it until a receive is posted for it and all slices before it have been taken.
//
// As many messages can wait as receives were posted to the device: a sender with credits sends no more.
//
// Threads: as the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/rail/verbs_outbox.h"
#include "transport/verbs/rail/verbs_queue_pair.h"
#include "transport/verbs/rail/verbs_reads.h"
#include "transport/verbs/rail/verbs_recv_slots.h"
#include "transport/verbs/rail/verbs_returns.h"
#include "transport/verbs/rail/verbs_target.h"

namespace annulus {

struct VerbsMessage {
  VerbsKind kind = VerbsKind::kUpdate;
  uint32_t value = 0;  // Cell, slot, or number of bytes of the slice that have arrived.
  VerbsHeader header;  // In a kPart only the slice's number is set.
  VerbsPlace place;    // Where the slice is to be read, if it is placed.

  uint32_t number() const { return header.sequence; }
};

class VerbsInbox {
 public:
  // What the inboxes of a link share. The pointers outlive them.
  struct Link {
    int slots = 0;
    int rails = 1;
    VerbsRecvSlots* recv_slots = nullptr;
    VerbsReads* reads = nullptr;
    VerbsTarget* target = nullptr;  // Gets what messages return, as the outbox does.
    VerbsReturns* returns = nullptr;
    VerbsFault* fault = nullptr;
  };

  static size_t CellBytes(int slots) { return VerbsQueueDepth(slots) * kVerbsCellBytes; }

  // `cells`: memory of CellBytes(slots).
  VerbsInbox(const Link& link, std::byte* cells, VerbsQueuePair* pair, VerbsOutbox* outbox)
      : link_(link),
        depth_(VerbsQueueDepth(link.slots)),
        cells_(cells),
        pair_(pair),
        outbox_(outbox),
        ring_(depth_),
        receives_(depth_) {}

  // Posts all receives to the device. `key`: local key of the cells.
  void PostCells(uint32_t key);
  // Posts those that have come back, by one call of the device. Before the peer is told of them.
  void PostReceives();
  // Takes the message that a receive of the device completed with.
  void OnCompletion(const ibv_wc& completion, uint32_t cell);
  // A receive of the device completed without a message.
  void OnFailure() { --cells_posted_; }
  // Whether the device has given back all receives.
  bool drained() const { return cells_posted_ == 0; }

  bool empty() const { return waiting_ == 0; }
  uint32_t size() const { return waiting_; }
  // Messages in the order in which they came; from 0 to below size().
  const VerbsMessage& at(uint32_t index) const { return ring_[(first_ + index) % depth_]; }
  const VerbsMessage& first() const { return ring_[first_]; }
  // The first message has been taken. The receive of a short one is posted again by FreeCell.
  void DropFirst() {
    if (ring_[first_].kind != VerbsKind::kShort) outbox_->CountTaken();
    first_ = first_ + 1 == depth_ ? 0 : first_ + 1;
    --waiting_;
  }
  // Forgets the messages from that one on.
  void DropFrom(uint32_t index) { waiting_ = index; }
  // The data in that cell has been used.
  void FreeCell(uint32_t cell) {
    Repost(cell);
    outbox_->CountTaken();
  }

  // The peer has left, and its device says that so many messages have arrived.
  void OnFarewell(uint32_t sent);
  // Messages that have arrived, modulo 2^32.
  uint32_t received() const { return received_; }

  // Whether the last slice that came this way, which has this number, is not whole.
  bool has_partial() const { return slice_ready_ < slice_bytes_; }
  uint32_t last() const { return last_; }

  std::byte* Cell(uint32_t cell) const { return cells_ + cell * kVerbsCellBytes; }
  bool Has(const std::byte* data) const { return data >= Cell(0) && data < Cell(depth_); }

 private:
  // Receives that are to be posted; null: none.
  struct Chain {
    ibv_recv_wr* first = nullptr;
    ibv_recv_wr* last = nullptr;
  };

  // Lets PostReceives post it.
  void Repost(uint32_t cell);
  bool Read(const ibv_wc& completion, uint32_t cell, VerbsMessage* message);
  bool ReadHeader(VerbsImmediate immediate, uint32_t cell, uint32_t message_bytes, VerbsMessage* message);
  bool CheckSlice(VerbsImmediate immediate, const VerbsHeader& header);
  bool CheckPart(uint32_t end, uint32_t message_bytes);
  bool Refuse(const char* what, uint64_t value) {
    link_.fault->Set(what, value);
    return false;
  }

  const Link link_;
  const uint32_t depth_;
  std::byte* const cells_;
  VerbsQueuePair* const pair_;
  VerbsOutbox* const outbox_;
  std::vector<VerbsMessage> ring_;
  uint32_t first_ = 0;
  uint32_t waiting_ = 0;
  std::vector<VerbsQueuePair::Receive> receives_;  // By cell.
  Chain unposted_;
  uint32_t cells_posted_ = 0;  // Number of receives that the device has.
  uint32_t received_ = 0;
  uint32_t last_ = UINT32_MAX;  // Number of the last slice that began to arrive.
  uint32_t slice_bytes_ = 0;    // Its size.
  uint32_t slice_ready_ = 0;    // What of it has arrived.
};

}  // namespace annulus
