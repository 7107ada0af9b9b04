#include "transport/verbs/verbs_endpoint.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace annulus {
namespace {

// Time that the devices have after Close() to carry out completed sends. It is hardly ever used up: a peer's device
// that is there acknowledges even while its program is stopped, and one that is not fails the requests within half a
// second, or as the settings say.
constexpr Nanoseconds kLinger = 3 * kSecond;

// Time that a device has to complete all requests of a connection that broke.
constexpr Nanoseconds kSettling = 100 * kMillisecond;

// Idle rounds after which released slots are returned by a message of their own. Until then a slice that goes the other
// way may carry them.
constexpr int kIdleRoundsToReturn = 8;

VerbsSendMemory SendMemoryIn(const VerbsMemory& local, const VerbsEndpointConfig& config) {
  VerbsSendMemory memory;
  memory.slots = local.data();
  memory.headers = local.data() + static_cast<size_t>(config.slots) * VerbsSlotStride(config.slot_bytes);
  return memory;
}

VerbsRecvMemory RecvMemoryIn(const VerbsMemory& written, const VerbsMemory& local, const VerbsEndpointConfig& config) {
  VerbsRecvMemory memory;
  memory.slots = written.data();
  memory.cells = local.data() + VerbsSendMemory::Bytes(config.slots, config.slot_bytes);
  return memory;
}

size_t LocalBytes(int slots, size_t slot_bytes) {
  return VerbsSendMemory::Bytes(slots, slot_bytes) + VerbsRecvMemory::CellBytes(slots);
}

}  // namespace

VerbsEndpoint::VerbsEndpoint(std::shared_ptr<VerbsHub> hub, const VerbsEndpointConfig& config)
    : hub_(std::move(hub)),
      config_(config),
      number_(hub_->Add(this)),
      written_(hub_.get(), config.slot_memory, VerbsRecvMemory::SlotBytes(config.slots, config.slot_bytes)),
      local_(hub_.get(), config.slot_memory, LocalBytes(config.slots, config.slot_bytes)),
      pair_(hub_.get(), number_, VerbsQueueDepth(config.slots), config.path),
      sender_(config.slots, config.slot_bytes, config.least_part, SendMemoryIn(local_, config), &pair_, &returns_,
              &fault_),
      receiver_(config.slots, config.slot_bytes, RecvMemoryIn(written_, local_, config), &pair_, &sender_, &returns_,
                &fault_) {
  limits_.slot_bytes = config.slot_bytes;
  limits_.send_slots = limits_.recv_slots = config.slots;
}

VerbsEndpoint::~VerbsEndpoint() {
  pair_.Destroy();
  hub_->Remove(number_);
}

size_t VerbsEndpoint::MemoryBytes(int slots, size_t slot_bytes) {
  return VerbsMemory::Footprint(VerbsRecvMemory::SlotBytes(slots, slot_bytes)) +
         VerbsMemory::Footprint(LocalBytes(slots, slot_bytes)) + sizeof(VerbsEndpoint) + 16 * 1024;
}

Status VerbsEndpoint::Open(VerbsGreeting* greeting) {
  ANNULUS_RETURN_IF_ERROR(written_.Register(true));
  ANNULUS_RETURN_IF_ERROR(local_.Register(false));
  sender_.SetKey(local_.region()->lkey);
  receiver_.SetKey(local_.region()->lkey);
  ANNULUS_RETURN_IF_ERROR(pair_.Create());
  receiver_.PostCells();
  if (fault_.any()) return FaultStatus();
  pair_.Greet(greeting);
  greeting->slots = static_cast<uint32_t>(config_.slots);
  greeting->slot_bytes = config_.slot_bytes;
  greeting->address = reinterpret_cast<uint64_t>(written_.data());
  greeting->key = written_.region()->rkey;
  return Status();
}

Status VerbsEndpoint::Connect(const VerbsGreeting& peer) {
  const std::string name = "rank " + std::to_string(config_.peer);
  if (peer.slots != static_cast<uint32_t>(config_.slots) || peer.slot_bytes != config_.slot_bytes) {
    return {Code::kMismatch,
            "verbs: " + name + " has " + std::to_string(peer.slots) + " slots of " + std::to_string(peer.slot_bytes) +
                " bytes, and this rank " + std::to_string(config_.slots) + " of " + std::to_string(config_.slot_bytes),
            config_.peer, 0};
  }
  peer_text_ = peer.ethernet ? GidText(peer.gid) : "LID " + std::to_string(peer.lid);
  sender_.Reach(peer);
  Status connected = pair_.Connect(peer);
  if (connected.ok()) return connected;
  return {connected.code(), connected.message() + " (to " + name + " at " + peer_text_ + ")", config_.peer,
          connected.os_errno()};
}

std::string VerbsEndpoint::Describe() const {
  return "verbs " + hub_->device().Describe() + " to " + peer_text_ + ", each way " + std::to_string(config_.slots) +
         " slots of " + std::to_string(config_.slot_bytes) + " bytes";
}

EndpointStats VerbsEndpoint::stats() const {
  EndpointStats stats;
  stats.memory.staging = 2 * static_cast<size_t>(config_.slots) * VerbsSlotStride(config_.slot_bytes);
  stats.memory.bookkeeping = MemoryBytes(config_.slots, config_.slot_bytes) - stats.memory.staging;
  return stats;
}

Status VerbsEndpoint::AcquireSlot(std::byte** slot) {
  if (!status_.ok()) return status_;
  std::byte* const taken = sender_.TakeSlot();
  if (taken != nullptr) {
    *slot = taken;
    return Status();
  }
  // Slots that wait for a peer that is gone never come back. The link itself ends once everything is delivered.
  return PeerLeft() || CauseIsKnown() ? LostStatus() : Status::WouldBlock();
}

Status VerbsEndpoint::PostSend(Send* send) {
  if (!status_.ok()) return status_;
  return sender_.Post(send);
}

Status VerbsEndpoint::PostRecv(Recv* recv) {
  if (!status_.ok()) return status_;
  return receiver_.Post(recv) ? Status() : Status::WouldBlock();
}

void VerbsEndpoint::TakeCompletion(const ibv_wc& completion, bool is_receive, uint32_t value) {
  if (completion.status != IBV_WC_SUCCESS) {
    // The failure that broke the connection counts, and not what was flushed because of it, in whatever order they
    // come.
    if (!Broken()) settle_end_ = DeadlineAfter(kSettling);
    if (!Broken() || failure_ == IBV_WC_WR_FLUSH_ERR) {
      failure_ = completion.status;
      vendor_error_ = completion.vendor_err;
    }
    if (!is_receive) sender_.TakeFailure(value);
  } else if (is_receive) {
    receiver_.TakeCompletion(completion, value);
  } else {
    sender_.TakeCompletion(value);
  }
}

Status VerbsEndpoint::Progress(bool* moved) {
  if (!status_.ok()) return status_;
  hub_->Poll();
  if (hub_->failed()) fault_.Set("using the device", 0, EIO);
  bool changed = receiver_.Advance();
  if (!Broken() && !PeerLeft()) sender_.Transmit();
  changed |= sender_.Complete();
  ReturnCredits(!changed);
  if (fault_.any()) {
    *moved = true;
    End(FaultStatus());
    return status_;
  }
  if (changed) {
    *moved = true;
    return Status();
  }
  if (stream_->LookDue() || Broken()) ReadStream();
  if (sender_.Complete()) *moved = true;
  if (!IsOver()) return Status();
  *moved = true;
  End(LostStatus());
  return status_;
}

void VerbsEndpoint::ReturnCredits(bool idle) {
  if (Broken() || PeerLeft()) return;
  idle_rounds_ = idle ? idle_rounds_ + 1 : 0;
  const bool slots_due =
      returns_.untold_slots > 0 && (2 * returns_.untold_slots >= config_.slots || idle_rounds_ >= kIdleRoundsToReturn);
  const bool receives_due = 2 * (returns_.taken - returns_.told_taken) >= VerbsQueueDepth(config_.slots);
  if (slots_due || receives_due) sender_.SendUpdate();
}

void VerbsEndpoint::ReadStream() {
  if (!stream_->Read()) fault_.Set("an end of its stream that is no farewell", 0);
  if (!PeerLeft()) return;
  // Completions of what it had sent have come before its farewell.
  while (hub_->Poll() > 0) {
  }
  if (stream_->farewell() != nullptr) sender_.TakeFarewell(stream_->farewell()->received);
}

// The failure itself may come behind what was flushed because of it.
bool VerbsEndpoint::CauseIsKnown() const {
  return Broken() && (failure_ != IBV_WC_WR_FLUSH_ERR || sender_.settled() || Now() >= settle_end_);
}

bool VerbsEndpoint::IsOver() const {
  if (receiver_.has_messages() || !(PeerLeft() || CauseIsKnown())) return false;
  const VerbsFarewell* const farewell = stream_->farewell();
  // What the peer's device saw acknowledged arrives, unless the connection broke here.
  return Broken() || farewell == nullptr || static_cast<int32_t>(receiver_.received() - farewell->sent) >= 0;
}

bool VerbsEndpoint::HasWork() const {
  return fault_.any() || hub_->failed() || receiver_.HasWork() || sender_.HasWork() || stream_->rung() || IsOver();
}

bool VerbsEndpoint::Arm() {
  if (!status_.ok()) return false;
  idle_rounds_ = kIdleRoundsToReturn;
  ReturnCredits(true);
  if (HasWork() || !hub_->Arm() || HasWork()) return false;
  if (Broken() && !receiver_.has_messages()) return false;  // It is over in a moment.
  stream_->Wait();
  return true;
}

bool VerbsEndpoint::Close() {
  if (closed_) return true;
  if (linger_end_ == 0) {
    status_ = {Code::kAborted, "the verbs link with rank " + std::to_string(config_.peer) + " was closed", config_.peer,
               0};
    sender_.FailAll(status_.code());
    receiver_.FailAll(status_.code());
    if (!Broken() && !PeerLeft()) sender_.Flush();
    linger_end_ = DeadlineAfter(kLinger);
  }
  hub_->Poll();
  if (!Broken()) (void)stream_->Read();
  if (!sender_.all_acknowledged() && !Broken() && !PeerLeft() && !fault_.any() && Now() < linger_end_) return false;
  Leave(Code::kOk);
  return true;
}

void VerbsEndpoint::End(Status status) {
  status_ = std::move(status);
  sender_.FailAll(status_.code());
  receiver_.FailAll(status_.code());
  Leave(status_.code());
}

void VerbsEndpoint::Leave(Code code) {
  closed_ = true;
  stream_->Leave({code, static_cast<uint32_t>(failure_), sender_.acknowledged_messages(), receiver_.received()});
  pair_.Destroy();
  hub_->Remove(number_);
}

Status VerbsEndpoint::FaultStatus() const {
  const std::string name = "rank " + std::to_string(config_.peer);
  if (fault_.os_errno != 0) {
    return {Code::kSystem,
            "verbs: " + std::string(fault_.what) + " for " + name + " on " + hub_->device().Describe() + ": " +
                std::strerror(fault_.os_errno) + hub_->trouble(),
            config_.peer, fault_.os_errno};
  }
  return {Code::kProtocol,
          "verbs: " + name + " sent " + fault_.what + " " + std::to_string(fault_.value) + ", which is not allowed (" +
              Describe() + ")",
          config_.peer, 0};
}

Status VerbsEndpoint::LostStatus() const {
  std::string text = "rank " + std::to_string(config_.peer);
  const VerbsFarewell* const farewell = stream_->farewell();
  if (farewell != nullptr && farewell->code == Code::kOk) {
    text += " closed its verbs link";
  } else if (farewell != nullptr && farewell->failure != 0) {
    text += std::string(" gave up its verbs link: ") + VerbsStatusText(static_cast<ibv_wc_status>(farewell->failure));
  } else if (farewell != nullptr) {
    text += std::string(" gave up its verbs link: ") + CodeName(farewell->code);
  } else if (PeerLeft()) {
    text += " died: its end of the verbs link is gone";
  } else {
    text += std::string(" was lost: ") + VerbsStatusText(failure_) + hub_->trouble();
    if (vendor_error_ != 0) text += "; vendor error " + std::to_string(vendor_error_);
  }
  return {Code::kPeerLost, text + " (" + Describe() + ")", config_.peer, 0};
}

}  // namespace annulus
