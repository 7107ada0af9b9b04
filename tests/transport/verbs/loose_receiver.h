// LooseReceiver: the receiving half of a verbs link without a device, for tests
// that play a peer who sends anything.
//
// Threads: one.
#pragma once

#include <arpa/inet.h>

#include <vector>

#include "transport/verbs/verbs_format.h"
#include "transport/verbs/verbs_inbox.h"
#include "transport/verbs/verbs_queue_pair.h"
#include "transport/verbs/verbs_receiver.h"
#include "transport/verbs/verbs_returns.h"
#include "transport/verbs/verbs_target.h"

namespace annulus {

class LooseReceiver {
 public:
  static constexpr int kSlots = 4;
  static constexpr size_t kSlotBytes = 1024;

  VerbsReceiver& receiver() { return receiver_; }
  VerbsReturns& returns() { return returns_; }
  const VerbsFault& fault() const { return fault_; }

  // Where the peer's device would write a header with its data: a slot's, or a
  // cell's.
  std::byte* slot(uint32_t index) { return written_.data() + index * VerbsSlotStride(kSlotBytes); }
  std::byte* cell(uint32_t index) { return cells_.data() + index * kVerbsCellBytes; }

  // What the device says of a message, as an honest device does.
  void Complete(VerbsKind kind, uint32_t value, uint32_t bytes, uint32_t cell) {
    const bool is_write = kind == VerbsKind::kSlice || kind == VerbsKind::kPart;
    ibv_wc completion{};
    completion.opcode = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    completion.wc_flags = IBV_WC_WITH_IMM;
    const VerbsImmediate immediate{kind, value};
    completion.imm_data = htonl(immediate.Pack());
    completion.byte_len = bytes;
    receiver_.TakeCompletion(completion, cell);
  }

  // A slice as an honest peer sends it.
  void Slice(uint32_t slot_index, const VerbsHeader& header) {
    WriteVerbsHeader(header, slot(slot_index));
    Complete(VerbsKind::kSlice, slot_index, kVerbsHeaderBytes + header.ready, 0);
  }
  void Short(uint32_t cell_index, const VerbsHeader& header) {
    WriteVerbsHeader(header, cell(cell_index));
    Complete(VerbsKind::kShort, 0, kVerbsHeaderBytes + header.ready, cell_index);
  }

 private:
  static std::vector<std::byte> Bytes(size_t bytes) { return std::vector<std::byte>(bytes); }

  std::vector<std::byte> written_ = Bytes(VerbsRecvMemory::SlotBytes(kSlots, kSlotBytes));
  std::vector<std::byte> cells_ = Bytes(VerbsRecvMemory::CellBytes(kSlots));
  VerbsQueuePair pair_{nullptr, 0, VerbsQueueDepth(kSlots), {}};  // Never made: nothing is posted.
  VerbsReturns returns_;
  VerbsFault fault_;
  VerbsTarget target_{kSlots, kSlotBytes, &fault_};
  VerbsReceiver receiver_{kSlots, kSlotBytes, {written_.data(), cells_.data()}, &pair_, &target_, &returns_, &fault_};
};

}  // namespace annulus
