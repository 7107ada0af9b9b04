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
#include "transport/verbs/rail/verbs_returns.h"
#include "transport/verbs/rail/verbs_target.h"
#include "transport/verbs/verbs_receiver.h"

namespace annulus {

class LooseReceiver {
 public:
  static constexpr int kSlots = 4;
  static constexpr size_t kSlotBytes = 1024;

  explicit LooseReceiver(int rails = 1) {
    for (int i = 0; i < rails; ++i) {
      rails_.push_back(std::make_unique<Rail>(static_cast<uint32_t>(i), link_, rails));
      inboxes_.push_back(&rails_.back()->inbox);
    }
    receiver_ = std::make_unique<VerbsReceiver>(inboxes_, &recv_slots_, &returns_, &fault_);
  }

  VerbsReceiver& receiver() { return *receiver_; }
  const VerbsReturns& returns() const { return returns_; }
  const VerbsOutbox& outbox(size_t rail = 0) const { return rails_[rail]->outbox; }
  const VerbsInbox& inbox(size_t rail = 0) const { return rails_[rail]->inbox; }
  const VerbsFault& fault() const { return fault_; }
  VerbsTarget& target() { return target_; }

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
    rails_[rail]->inbox.TakeCompletion(completion, cell);
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
  static std::vector<std::byte> Bytes(size_t bytes) { return std::vector<std::byte>(bytes); }

  struct Rail {
    Rail(uint32_t index, VerbsInbox::Link link, int rails)
        : outbox(index, kSlots, nullptr, nullptr, &pair, link.fault),
          inbox(With(link, rails), cells.data(), &pair, &outbox) {}
    static VerbsInbox::Link With(VerbsInbox::Link link, int rails) {
      link.rails = rails;
      return link;
    }

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
  const VerbsInbox::Link link_{kSlots, 1, &recv_slots_, &target_, &returns_, &fault_};
  std::vector<std::unique_ptr<Rail>> rails_;
  std::vector<VerbsInbox*> inboxes_;
  std::unique_ptr<VerbsReceiver> receiver_;
};

}  // namespace annulus
