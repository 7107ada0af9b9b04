#include "transport/verbs/verbs_endpoint.h"

#include <algorithm>
#include <utility>

namespace annulus {
namespace {

// Least time that the devices have after Close() to carry out completed sends. It is hardly ever used up: a peer's
// device that is there acknowledges even while its program is stopped, and one that is not fails the requests within
// half a second, or as the settings say.
constexpr Nanoseconds kLinger = 3 * kSecond;

// Time that messages may take to come up from the device after the peer's farewell, which says that they are there.
constexpr Nanoseconds kDraining = 3 * kSecond;

// Messages that wait for a receive, and requests of a chain; an upper bound.
constexpr size_t kBookkeepingBytes = 32 * 1024;

}  // namespace

VerbsEndpoint::VerbsEndpoint(std::shared_ptr<VerbsHub> hub, int peer, const VerbsConnectionConfig& config)
    : peer_(peer),
      // A device may take longer than its settings say.
      linger_(std::max(kLinger, 2 * config.path.Patience())),
      connection_(std::move(hub), config) {
  limits_.slot_bytes = config.slot_bytes;
  limits_.send_slots = limits_.recv_slots = config.slots;
  limits_.in_place = {MemoryKind::kHost};
}

size_t VerbsEndpoint::MemoryBytes(int slots, size_t slot_bytes) {
  return VerbsConnection::MemoryBytes(slots, slot_bytes) + sizeof(VerbsEndpoint) + kBookkeepingBytes;
}

Status VerbsEndpoint::Connect(const VerbsGreeting& peer) {
  if (peer.slots != static_cast<uint32_t>(limits_.send_slots) || peer.slot_bytes != limits_.slot_bytes) {
    return {Code::kMismatch,
            "verbs: " + PeerName() + " has " + std::to_string(peer.slots) + " slots of " +
                std::to_string(peer.slot_bytes) + " bytes, and this rank " + std::to_string(limits_.send_slots) +
                " of " + std::to_string(limits_.slot_bytes),
            peer_, 0};
  }
  peer_text_ = peer.ethernet ? GidText(peer.gid) : "LID " + std::to_string(peer.lid);
  Status connected = connection_.Connect(peer);
  if (connected.ok()) return connected;
  return {connected.code(), connected.message() + " (to " + PeerName() + " at " + peer_text_ + ")", peer_,
          connected.os_errno()};
}

std::string VerbsEndpoint::Describe() const {
  return "verbs " + connection_.device().Describe() + " to " + peer_text_ + ", each way " +
         std::to_string(limits_.send_slots) + " slots of " + std::to_string(limits_.slot_bytes) + " bytes";
}

EndpointStats VerbsEndpoint::stats() const {
  EndpointStats stats;
  stats.memory.staging = 2 * static_cast<size_t>(limits_.send_slots) * VerbsSlotStride(limits_.slot_bytes);
  stats.memory.bookkeeping = MemoryBytes(limits_.send_slots, limits_.slot_bytes) - stats.memory.staging;
  return stats;
}

Status VerbsEndpoint::AcquireSlot(std::byte** slot) {
  if (!status_.ok()) return status_;
  // The link itself ends once everything is delivered.
  if (IsEnding()) return LostStatus();
  std::byte* const taken = connection_.sender().TakeSlot();
  if (taken == nullptr) return Status::WouldBlock();
  *slot = taken;
  return Status();
}

Status VerbsEndpoint::PostSend(Send* send) {
  if (!status_.ok()) return status_;
  if (IsEnding()) return LostStatus();
  return connection_.sender().Post(send);
}

Status VerbsEndpoint::PostRecv(Recv* recv) {
  if (!status_.ok()) return status_;
  return connection_.receiver().Post(recv) ? Status() : Status::WouldBlock();
}

Status VerbsEndpoint::Progress(bool* moved) {
  if (!status_.ok()) return status_;
  if (connection_.Move(!PeerLeft())) {
    *moved = true;
    if (!connection_.HasFault()) return Status();
  } else if (stream_->LookDue() || connection_.Broken()) {
    ReadStream();
    if (connection_.sender().Complete()) *moved = true;
  }
  if (FailSends()) *moved = true;
  if (connection_.HasFault()) {
    End(connection_.FaultStatus(PeerName(), peer_));
  } else {
    // One poll is bounded, so messages may have come that it left.
    if (IsOver()) connection_.PollAll();
    if (!IsOver()) return Status();
    End(LostStatus());
  }
  *moved = true;
  return status_;
}

// What the peer has not received by now it never will, also while messages of its own still wait for receives.
bool VerbsEndpoint::FailSends() {
  if (!IsEnding() || !connection_.sender().has_sends()) return false;
  if (connection_.sender().reads_owners_memory()) {
    if (!AllArrived()) return false;
    connection_.PollAll();
    connection_.Stop();
    connection_.sender().Complete(true);
  }
  connection_.sender().FailAll(LostStatus().code());
  return true;
}

void VerbsEndpoint::ReadStream() {
  if (!stream_->Read()) connection_.fault()->Set("an end of its stream that is no farewell", 0);
  if (!PeerLeft()) return;
  if (drain_end_ == 0) drain_end_ = DeadlineAfter(kDraining);
  connection_.PollAll();
  const VerbsFarewell* const farewell = stream_->farewell();
  if (farewell == nullptr) return;
  connection_.sender().target().TakeFarewell(farewell->received);
  connection_.receiver().TakeFarewell(farewell->sent);
}

bool VerbsEndpoint::AllArrived() const {
  if (!IsEnding()) return false;
  const VerbsFarewell* const farewell = stream_->farewell();
  // What the peer's device saw acknowledged arrives, unless the connection broke here, or the peer does not tell the
  // truth.
  return connection_.Broken() || farewell == nullptr ||
         VerbsReached(connection_.receiver().received(), farewell->sent) || Now() >= drain_end_;
}

bool VerbsEndpoint::Arm() {
  if (!status_.ok() || stream_->rung() || IsOver() || !connection_.Arm(!PeerLeft()) || IsOver()) return false;
  // It is over in a moment, or its sends are.
  const bool waits = connection_.receiver().has_messages() && !connection_.sender().has_sends();
  if ((connection_.Broken() || PeerLeft()) && !waits) return false;
  stream_->Wait();
  return true;
}

bool VerbsEndpoint::Close() {
  if (closed_) return true;
  if (linger_end_ == 0) {
    status_ = {Code::kAborted, "the verbs link with " + PeerName() + " was closed", peer_, 0};
    connection_.PollAll();
    if (connection_.sender().reads_owners_memory() && !connection_.sender().all_acknowledged()) connection_.Stop();
    connection_.sender().FailAll(status_.code());
    connection_.receiver().FailAll(status_.code());
    if (!connection_.Broken() && !connection_.stopped() && !PeerLeft()) connection_.sender().Flush();
    linger_end_ = DeadlineAfter(linger_);
  }
  connection_.PollAll();
  (void)stream_->Read();
  const bool lives = !connection_.Broken() && !connection_.stopped() && !connection_.HasFault() && !PeerLeft();
  if (lives && !connection_.sender().all_acknowledged() && Now() < linger_end_) return false;
  Leave(Code::kOk);
  return true;
}

void VerbsEndpoint::End(Status status) {
  status_ = std::move(status);
  connection_.sender().FailAll(status_.code());
  connection_.receiver().FailAll(status_.code());
  Leave(status_.code());
}

void VerbsEndpoint::Leave(Code code) {
  closed_ = true;
  stream_->Leave({code, static_cast<uint32_t>(connection_.failure()), connection_.sender().acknowledged_messages(),
                  connection_.receiver().received()});
  connection_.Destroy();
}

Status VerbsEndpoint::LostStatus() const {
  if (connection_.FailedHere()) {
    return {Code::kSystem, "verbs: " + connection_.FailureText() + " (" + Describe() + ")", Status::kNoRank, 0};
  }
  std::string text = PeerName();
  const VerbsFarewell* const farewell = stream_->farewell();
  if (farewell != nullptr && farewell->failure != 0) {
    text += std::string(" gave up its verbs link: ") + VerbsStatusText(static_cast<ibv_wc_status>(farewell->failure));
  } else if (farewell != nullptr && farewell->code == Code::kOk) {
    text += " closed its verbs link";
  } else if (farewell != nullptr) {
    text += std::string(" gave up its verbs link: ") + CodeName(farewell->code);
  } else if (PeerLeft()) {
    text += " died: its end of the verbs link is gone";
  } else {
    text += " was lost: " + connection_.FailureText();
  }
  return {Code::kPeerLost, text + " (" + Describe() + ")", peer_, 0};
}

}  // namespace annulus
