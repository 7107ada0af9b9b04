#include "transport/verbs/verbs_endpoint.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/log.h"

namespace annulus {
namespace {

// Least time that the devices have after Close() to carry out completed sends. It is hardly ever used up: a peer's
// device that is there acknowledges even while its program is stopped, and one that is not fails the requests within
// half a second, or as the settings say.
constexpr Nanoseconds kLinger = 3 * kSecond;

// Time that messages may take to come up from the device after the peer's farewell, which says that they are there.
constexpr Nanoseconds kDraining = 3 * kSecond;

// For each rail: messages that wait for a receive, receives, READs, and requests of a chain; an upper bound.
constexpr size_t kBookkeepingBytes = 32 * 1024;
constexpr size_t kSlotBookkeepingBytes = 256;

}  // namespace

VerbsEndpoint::VerbsEndpoint(const std::vector<VerbsPort>& ports, int peer, const VerbsConnectionConfig& config)
    : peer_(peer),
      rank_(config.rank),
      // A device may take longer than its settings say.
      linger_(std::max(kLinger, 2 * config.path.Patience())),
      connection_(ports, config),
      stopping_(&connection_, config.continue_limit, connection_.executor()) {
  if (config.continue_limit > 0) stopping_.Allow();
  limits_.slot_bytes = config.slot_bytes;
  limits_.send_slots = limits_.recv_slots = config.slots;
  limits_.in_place = {MemoryKind::kHost};
  if (config.least_read > 0) limits_.may_land_in = {MemoryKind::kHost};
}

size_t VerbsEndpoint::MemoryBytes(int slots, size_t slot_bytes, size_t rails, bool continues) {
  return VerbsConnection::MemoryBytes(slots, slot_bytes, rails) + sizeof(VerbsEndpoint) +
         rails * (kBookkeepingBytes + static_cast<size_t>(slots) * kSlotBookkeepingBytes) +
         (continues ? VerbsKept::MemoryBytes(slots, rails) : 0);
}

Status VerbsEndpoint::Open(VerbsGreeting* greeting) {
  greeting->continues = stopping_.allowed();
  return connection_.Open(greeting);
}

void VerbsEndpoint::Attach(StreamSocket socket) {
  stream_.emplace(std::move(socket));
  if (!stopping_.allowed()) return;
  stream_->MayStop();
  connection_.Keep();
}

Status VerbsEndpoint::Connect(const VerbsGreeting& peer) {
  if (peer.slots != static_cast<uint32_t>(limits_.send_slots) || peer.slot_bytes != limits_.slot_bytes) {
    return {Code::kMismatch,
            "verbs: " + PeerName() + " has " + std::to_string(peer.slots) + " slots of " +
                std::to_string(peer.slot_bytes) + " bytes, and this rank " + std::to_string(limits_.send_slots) +
                " of " + std::to_string(limits_.slot_bytes),
            peer_, 0};
  }
  const size_t rails = connection_.num_rails();
  if (peer.num_rails != rails) {
    return {Code::kMismatch,
            "verbs: " + PeerName() + " links " + std::to_string(peer.num_rails) + " ports, and this rank " +
                std::to_string(rails),
            peer_, 0};
  }
  if (!peer.continues) stopping_.Forbid();
  if (connection_.MayReachGpus()) {
    limits_.in_place = {MemoryKind::kHost, MemoryKind::kDevice};
    if (!limits_.may_land_in.empty()) limits_.may_land_in = limits_.in_place;
  }
  for (const VerbsRailGreeting& rail : std::span(peer.rails).first(rails)) {
    peer_texts_.push_back(rail.ethernet ? GidText(rail.gid) : "LID " + std::to_string(rail.lid));
  }
  return connection_.Connect(peer);
}

std::string VerbsEndpoint::Describe() const {
  std::string text = "verbs ";
  for (size_t i = 0; i < peer_texts_.size(); ++i) {
    text += (i == 0 ? "" : " and ") + connection_.device(i).Describe() + " to " + peer_texts_[i];
  }
  text +=
      ", each way " + std::to_string(limits_.send_slots) + " slots of " + std::to_string(limits_.slot_bytes) + " bytes";
  const std::string gpus = connection_.GpusText();
  return gpus.empty() ? text : text + ", memory of GPUs " + gpus;
}

EndpointStats VerbsEndpoint::stats() const {
  EndpointStats stats;
  stats.memory.staging = 2 * static_cast<size_t>(limits_.send_slots) * VerbsSlotStride(limits_.slot_bytes);
  stats.memory.bookkeeping =
      MemoryBytes(limits_.send_slots, limits_.slot_bytes, connection_.num_rails(), connection_.sender().keeps()) -
      stats.memory.staging;
  stats.read_bytes = connection_.reads().read_bytes();
  stats.landed_bytes = connection_.reads().landed_bytes();
  return stats;
}

Status VerbsEndpoint::AcquireSlot(size_t, std::byte** slot) {
  if (!status_.ok()) return status_;
  // The link itself ends once everything is delivered.
  if (IsEnding()) return LostStatus();
  std::byte* const taken = connection_.sender().LendSlot();
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
  if (stopping_.begun()) return ProgressStopping(moved);
  if (connection_.Move(!PeerLeft())) {
    stream_->NoteMove();
    *moved = true;
    if (!connection_.HasFault()) return Status();
  } else if (stream_->LookDue() || connection_.Broken()) {
    ReadStream();
    if (connection_.sender().Complete()) *moved = true;
  }
  if (MustStop()) {
    BeginStopping();
    *moved = true;
    return Status();
  }
  if (connection_.CauseIsKnown()) connection_.DrainOthers();
  if (FailLostSends()) *moved = true;
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

bool VerbsEndpoint::MustStop() const {
  if (!stopping_.allowed() || PeerLeft() || connection_.PeerIsAtFault()) return false;
  return connection_.CauseIsKnown() || connection_.HasFault() || stream_->stop() != nullptr;
}

void VerbsEndpoint::BeginStopping() {
  std::string why;
  if (connection_.HasFault()) {
    why = connection_.FaultStatus(PeerName(), peer_).message();
  } else if (connection_.CauseIsKnown()) {
    why = connection_.FailureText();
  } else {
    // Where its device failed as a whole, no request of it has.
    const auto failure = static_cast<ibv_wc_status>(stream_->stop()->failure);
    why = PeerName() + " stopped: " + VerbsStatusText(failure == IBV_WC_SUCCESS ? IBV_WC_FATAL_ERR : failure);
  }
  stopping_.Begin(static_cast<uint32_t>(connection_.failure()), std::move(why));
}

// A peer that has left after all ends the link as it does any other.
Status VerbsEndpoint::ProgressStopping(bool* moved) {
  if (connection_.receiver().Advance()) *moved = true;
  if (stopping_.stopped()) {
    if (connection_.PeerIsAtFault()) End(connection_.FaultStatus(PeerName(), peer_));
    return status_;
  }
  ReadStream();
  const VerbsStopping::Result result = PeerLeft() ? VerbsStopping::Result::kWaits : stopping_.Step(&*stream_);
  if (result == VerbsStopping::Result::kWrongCount) {
    connection_.fault()->Set("a number of received slices", stream_->stop()->slices);
  }
  if (connection_.PeerIsAtFault() || result == VerbsStopping::Result::kRefused) {
    End(connection_.FaultStatus(PeerName(), peer_));
  } else if (result == VerbsStopping::Result::kGaveUp) {
    End(LostStatus());
  } else if (PeerLeft()) {
    stopping_.Forbid();
  }
  *moved |= result != VerbsStopping::Result::kWaits || PeerLeft();
  return status_;
}

void VerbsEndpoint::FailPending(Code code) {
  if (connection_.WritesOwnersMemory()) connection_.Stop();
  FailSends(code);
  FailReceives(code);
}

// What the peer has not received by now it never will, also while messages of its own still wait for receives.
bool VerbsEndpoint::FailLostSends() {
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
  connection_.OnFarewell(*farewell);
}

bool VerbsEndpoint::AllArrived() const {
  if (!IsEnding()) return false;
  const VerbsFarewell* const farewell = stream_->farewell();
  // What the peer's device saw acknowledged arrives, unless the connection broke here, or the peer does not tell the
  // truth.
  return (connection_.Broken() && connection_.Drained()) || connection_.stopped() || farewell == nullptr ||
         connection_.HasArrived(*farewell) || Now() >= drain_end_;
}

bool VerbsEndpoint::Arm() {
  if (!status_.ok()) return false;
  if (stopping_.begun()) return !connection_.receiver().HasWork() && stopping_.Arm(&*stream_);
  if (MustStop() || stream_->rung() || IsOver() || !connection_.Arm(!PeerLeft()) || IsOver()) return false;
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
    if (connection_.sender().must_stop()) connection_.Stop();
    FailPending(status_.code());
    const bool flushes = !connection_.Broken() && !connection_.stopped() && !PeerLeft();
    if (flushes && !stopping_.begun()) connection_.sender().Flush();
    linger_end_ = DeadlineAfter(linger_);
  }
  connection_.PollAll();
  if (!stopping_.stopped()) (void)stream_->Read();
  if (Now() < linger_end_ && LingersOn()) return false;
  Leave(Code::kOk);
  return true;
}

// Whether what was sent may still reach the peer. Once the link has stopped, that is for its owner to see to.
bool VerbsEndpoint::LingersOn() {
  if (PeerLeft()) return false;
  if (!stopping_.begun() && stopping_.allowed() && connection_.sender().owes_completed()) {
    if (MustStop()) BeginStopping();
    // What was flushed may be reported before its cause.
    if (!stopping_.begun() && connection_.Broken() && !connection_.PeerIsAtFault()) return true;
  }
  if (stopping_.begun()) {
    const VerbsStopping::Result result = stopping_.Step(&*stream_);
    const bool goes_on = result == VerbsStopping::Result::kWaits || result == VerbsStopping::Result::kMoved;
    return stream_->is_open() && goes_on;
  }
  const bool lives = !connection_.Broken() && !connection_.stopped() && !connection_.HasFault();
  return lives && !connection_.sender().all_acknowledged();
}

void VerbsEndpoint::End(Status status) {
  status_ = std::move(status);
  FailPending(status_.code());
  Leave(status_.code());
}

void VerbsEndpoint::Leave(Code code) {
  closed_ = true;
  VerbsFarewell farewell{.code = code, .failure = static_cast<uint32_t>(connection_.failure())};
  connection_.FillFarewell(&farewell);
  stream_->Leave(farewell);
  connection_.Destroy();
  for (size_t rail = 0; rail < connection_.num_rails(); ++rail) {
    Log(LogLevel::kInfo, rank_, "link with rank %d over %s", peer_, connection_.CountsText(rail).c_str());
  }
}

// A failure of the device here does not end a link that may go on over the stream. What ends it is the peer, then.
Status VerbsEndpoint::LostStatus() const {
  if (connection_.FailedHere() && !connection_.sender().keeps()) {
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
  } else if (stopping_.begun()) {
    text += " was lost: its host does not answer over TCP either, after its verbs link failed: " + stopping_.why();
  } else {
    text += " was lost: " + connection_.FailureText();
  }
  return {Code::kPeerLost, text + " (" + Describe() + ")", peer_, 0};
}

}  // namespace annulus
