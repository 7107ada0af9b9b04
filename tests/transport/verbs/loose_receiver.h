// LooseReceiver: the receiving half of a verbs link without a device, for tests that play a peer who sends anything.
//
// Threads: one.
#pragma once

#include <arpa/inet.h>

#include <memory>
#include <vector>

#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/rail/verbs_inbox.h"
#include "transport/verbs/rail/verbs_outbox.h"
#include "transport/verbs/rail/verbs_queue_pair.h"
#include "transport/verbs/rail/verbs_reads.h"
#include "transport/verbs/rail/verbs_recv_slots.h"
#include "transport/verbs/rail/verbs_returns.h"
#include "transport/verbs/rail/verbs_target.h"
#include "transport/verbs/verbs_receiver.h"

namespace annulus {

class LooseReceiver {
 public:
  static constexpr int kSlots = 4;
  static constexpr size_t kSlotBytes = 1024;

  // `most_reads`: of each rail, at a time.
  explicit LooseReceiver(int rails = 1, uint32_t most_reads = 2)
      : reads_(std::make_unique<VerbsReads>(static_cast<size_t>(rails), &recv_slots_, &fault_)) {
    for (int i = 0; i < rails; ++i) {
      rails_.push_back(std::make_unique<Rail>(static_cast<uint32_t>(i), LinkOf(rails)));
      inboxes_.push_back(&rails_.back()->inbox);
      reads_->Attach(static_cast<size_t>(i), &rails_.back()->pair, {});
      reads_->Allow(static_cast<size_t>(i), 0, most_reads);
    }
    receiver_ = std::make_unique<VerbsReceiver>(inboxes_, &recv_slots_, reads_.get(), &returns_, &fault_);
  }

  VerbsReceiver& receiver() { return *receiver_; }
  const VerbsReturns& returns() const { return returns_; }
  const VerbsOutbox& outbox(size_t rail = 0) const { return rails_[rail]->outbox; }
  const VerbsInbox& inbox(size_t rail = 0) const { return rails_[rail]->inbox; }
  const VerbsFault& fault() const { return fault_; }
  VerbsTarget& target() { return target_; }
  VerbsReads& reads() { return *reads_; }

  // Where the peer's device would write a header with its data: a slot's, or a cell's.
  std::byte* slot(uint32_t index) { return written_.data() + index * VerbsSlotStride(kSlotBytes); }
  std::byte* cell(uint32_t index, size_t rail = 0) { return rails_[rail]->inbox.Cell(index); }

  // What the device says of a message, as an honest device does.
  void Complete(VerbsKind kind, uint32_t value, uint32_t bytes, uint32_t cell, size_t rail = 0) {
    const bool is_write = kind == VerbsKind::kSlice || kind == VerbsKind::kPart;
    ibv_wc completion{};
    completion.opcode = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    completion.wc_flags = IBV_WC_WITH_IMM;
    const VerbsImmediate immediate{kind, value};
    completion.imm_data = htonl(immediate.Pack());
    completion.byte_len = bytes;
    Complete(completion, cell, rail);
  }
  void Complete(const ibv_wc& completion, uint32_t cell, size_t rail = 0) {
    rails_[rail]->inbox.OnCompletion(completion, cell);
  }

  // The place of a slice, as an honest peer sends it.
  void Placed(uint32_t slot_index, VerbsHeader header, const VerbsPlace& place, size_t rail = 0) {
    header.placed = header.lent = true;
    WriteVerbsHeader(header, slot(slot_index));
    WriteVerbsPlace(place, slot(slot_index) + kVerbsHeaderBytes);
    Complete(VerbsKind::kSlice, slot_index, kVerbsHeaderBytes + kVerbsPlaceBytes, 0, rail);
  }
  // A slice as an honest peer sends it.
  void Slice(uint32_t slot_index, const VerbsHeader& header, size_t rail = 0) {
    WriteVerbsHeader(header, slot(slot_index));
    Complete(VerbsKind::kSlice, slot_index, kVerbsHeaderBytes + header.ready, 0, rail);
  }
  void Short(uint32_t cell_index, const VerbsHeader& header, size_t rail = 0) {
    WriteVerbsHeader(header, cell(cell_index, rail));
    Complete(VerbsKind::kShort, 0, kVerbsHeaderBytes + header.ready, cell_index, rail);
  }

 private:
  VerbsInbox::Link LinkOf(int rails) {
    return {kSlots, rails, &recv_slots_, reads_.get(), &target_, &returns_, &fault_};
  }
  static std::vector<std::byte> Bytes(size_t bytes) { return std::vector<std::byte>(bytes); }

  struct Rail {
    Rail(uint32_t index, const VerbsInbox::Link& link)
        : outbox(index, kSlots, nullptr, {}, &pair, link.fault), inbox(link, cells.data(), &pair, &outbox) {}

    std::vector<std::byte> cells = Bytes(VerbsInbox::CellBytes(kSlots));
    VerbsQueuePair pair{nullptr, 0, VerbsQueueDepth(kSlots), {}};  // Never made: nothing is posted.
    VerbsOutbox outbox;
    VerbsInbox inbox;
  };

  std::vector<std::byte> written_ = Bytes(VerbsRecvSlots::MemoryBytes(kSlots, kSlotBytes));
  VerbsRecvSlots recv_slots_{kSlots, kSlotBytes, written_.data()};
  VerbsReturns returns_;
  VerbsFault fault_;
  VerbsTarget target_{kSlots, kSlotBytes, &fault_};
  std::unique_ptr<VerbsReads> reads_;
  std::vector<std::unique_ptr<Rail>> rails_;
  std::vector<VerbsInbox*> inboxes_;
  std::unique_ptr<VerbsReceiver> receiver_;
};

}  // namespace annulus
