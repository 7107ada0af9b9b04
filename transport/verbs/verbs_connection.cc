#include "transport/verbs/verbs_connection.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace annulus {
namespace {

// Time that a device has to complete all requests of a connection that broke. It takes none, unless the device is gone.
constexpr Nanoseconds kDraining = 500 * kMillisecond;

// Idle rounds after which released slots are returned by a message of their own. Until then a slice that goes the other
// way may carry them.
constexpr int kIdleRoundsToReturn = 8;

// Time that a send from its owner's memory, which the peer's device has, waits for the word of the peer's process. A
// process that is in a call gives it within some microseconds; one that computes may take any time, so then the data is
// copied.
constexpr Nanoseconds kLentWait = 100 * kMicrosecond;

VerbsSendMemory SendMemoryIn(const VerbsMemory& local, const VerbsConnectionConfig& config) {
  VerbsSendMemory memory;
  memory.slots = local.data();
  memory.headers = local.data() + static_cast<size_t>(config.slots) * VerbsSlotStride(config.slot_bytes);
  return memory;
}

VerbsRecvMemory RecvMemoryIn(const VerbsMemory& written, const VerbsMemory& local,
                             const VerbsConnectionConfig& config) {
  VerbsRecvMemory memory;
  memory.slots = written.data();
  memory.cells = local.data() + VerbsSendMemory::Bytes(config.slots, config.slot_bytes);
  return memory;
}

// Whether this end or its device is to blame, and not the peer. A message that is too long for a receive comes from the
// peer.
bool IsOwnFailure(ibv_wc_status status, bool is_receive) {
  switch (status) {
    case IBV_WC_LOC_LEN_ERR:
      return !is_receive;
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_EEC_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_FATAL_ERR:
      return true;
    default:
      return false;
  }
}

size_t LocalBytes(int slots, size_t slot_bytes) {
  return VerbsSendMemory::Bytes(slots, slot_bytes) + VerbsRecvMemory::CellBytes(slots);
}

}  // namespace

VerbsConnection::VerbsConnection(std::shared_ptr<VerbsHub> hub, const VerbsConnectionConfig& config)
    : hub_(std::move(hub)),
      config_(config),
      number_(hub_->Add(this)),
      written_(hub_.get(), config.slot_memory, VerbsRecvMemory::SlotBytes(config.slots, config.slot_bytes)),
      local_(hub_.get(), config.slot_memory, LocalBytes(config.slots, config.slot_bytes)),
      pair_(hub_.get(), number_, VerbsQueueDepth(config.slots), config.path),
      sender_(config.slots, config.slot_bytes, config.least_part, SendMemoryIn(local_, config), config.regions.get(),
              &pair_, &returns_, &fault_),
      receiver_(config.slots, config.slot_bytes, RecvMemoryIn(written_, local_, config), &pair_, &sender_.target(),
                &returns_, &fault_),
      alarm_(hub_->executor()) {}

void VerbsConnection::Destroy() {
  Stop();
  hub_->Remove(number_);
}

size_t VerbsConnection::MemoryBytes(int slots, size_t slot_bytes) {
  return VerbsMemory::Footprint(VerbsRecvMemory::SlotBytes(slots, slot_bytes)) +
         VerbsMemory::Footprint(LocalBytes(slots, slot_bytes));
}

Status VerbsConnection::Open(VerbsGreeting* greeting) {
  ANNULUS_RETURN_IF_ERROR(written_.Register(true));
  ANNULUS_RETURN_IF_ERROR(local_.Register(false));
  ANNULUS_RETURN_IF_ERROR(pair_.Create());
  sender_.SetKey(local_.region()->lkey);
  receiver_.PostCells(local_.region()->lkey);
  if (fault_.any()) return FaultStatus("a peer", Status::kNoRank);
  pair_.Greet(greeting);
  greeting->slots = static_cast<uint32_t>(config_.slots);
  greeting->slot_bytes = config_.slot_bytes;
  greeting->address = reinterpret_cast<uint64_t>(written_.data());
  greeting->key = written_.region()->rkey;
  return Status();
}

Status VerbsConnection::Connect(const VerbsGreeting& peer) {
  sender_.target().Reach(peer);
  return pair_.Connect(peer);
}

void VerbsConnection::TakeCompletion(const ibv_wc& completion, bool is_receive, uint32_t value) {
  if (completion.status == IBV_WC_SUCCESS) {
    if (is_receive) return receiver_.TakeCompletion(completion, value);
    return sender_.chain().TakeCompletion(value);
  }
  // The failure that broke the connection counts, and not what was flushed because of it, in whatever order they come.
  if (!Broken() && failure_.drain_end == 0) failure_.drain_end = DeadlineAfter(kDraining);
  if (!Broken() || failure_.status == IBV_WC_WR_FLUSH_ERR) {
    failure_.status = completion.status;
    failure_.here = IsOwnFailure(completion.status, is_receive);
    failure_.vendor_error = completion.vendor_err;
  }
  is_receive ? receiver_.TakeFailure() : sender_.chain().TakeFailure(value);
}

void VerbsConnection::Drain() {
  if (!pair_.Fail()) return;  // Drained by now, as far as one can know.
  failure_.drain_end = DeadlineAfter(kDraining);
}

bool VerbsConnection::StopForGood() {
  PollAll();
  const int error = pair_.Destroy();
  if (error != 0) {
    fault_.Set("ending a queue pair", 0, error);
    return false;
  }
  PollAll();
  hub_->Remove(number_);
  return true;
}

bool VerbsConnection::Move(bool sends) {
  hub_->Poll();
  bool changed = receiver_.Advance();
  const bool usable = sends && !Broken();
  changed |= sender_.Advance(usable);
  if (usable) ReturnCredits(!changed);
  return changed || CopyLent();
}

bool VerbsConnection::CopyLent() {
  if (!sender_.CanCopyLent()) {
    lent_since_ = 0;
    return false;
  }
  const Nanoseconds now = Now();
  if (lent_since_ == 0) lent_since_ = now;
  if (now - lent_since_ < kLentWait) return false;
  sender_.CopyLent();
  lent_since_ = 0;
  return true;
}

void VerbsConnection::PollAll() {
  while (hub_->Poll() > 0) {
  }
}

void VerbsConnection::ReturnCredits(bool idle) {
  idle_rounds_ = idle ? idle_rounds_ + 1 : 0;
  const bool slots_due =
      returns_.untold_slots > 0 && (2 * returns_.untold_slots >= config_.slots || idle_rounds_ >= kIdleRoundsToReturn);
  const bool receives_due = 2 * (returns_.taken - returns_.told_taken) >= VerbsQueueDepth(config_.slots);
  const bool lent_due = returns_.untold_lent && (idle_rounds_ >= kIdleRoundsToReturn || !receiver_.has_receives());
  if (slots_due || receives_due || lent_due) sender_.SendUpdate(receives_due);
}

bool VerbsConnection::Arm(bool sends) {
  idle_rounds_ = kIdleRoundsToReturn;
  if (sends && !Broken()) ReturnCredits(true);
  if (HasWork() || !hub_->Arm() || HasWork()) return false;
  if (sender_.CanCopyLent()) alarm_.Set(kLentWait);
  return true;
}

bool VerbsConnection::CauseIsKnown() const {
  return Broken() &&
         (failure_.status != IBV_WC_WR_FLUSH_ERR || sender_.chain().finished() || Now() >= failure_.drain_end);
}

std::string VerbsConnection::FailureText() const {
  std::string text = VerbsStatusText(failure_.status) + hub_->trouble();
  if (failure_.vendor_error != 0) text += "; vendor error " + std::to_string(failure_.vendor_error);
  return text;
}

Status VerbsConnection::FaultStatus(const std::string& name, int peer) const {
  if (fault_.any() && fault_.os_errno == 0) {
    return {Code::kProtocol,
            "verbs: " + name + " sent " + fault_.what + " " + std::to_string(fault_.value) + ", which is not allowed",
            peer, 0};
  }
  const char* const what = fault_.any() ? fault_.what : "waiting for completions";
  const int error = fault_.any() ? fault_.os_errno : EIO;
  return {Code::kSystem,
          std::string("verbs: ") + what + " for " + name + " on " + device().Describe() + ": " + std::strerror(error) +
              hub_->trouble(),
          Status::kNoRank, error};
}

}  // namespace annulus
