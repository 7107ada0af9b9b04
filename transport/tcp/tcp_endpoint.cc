#include "transport/tcp/tcp_endpoint.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace annulus {
namespace {

// Time that the peer's kernel has after Close() to acknowledge completed sends. A round trip is far shorter, and a peer
// that does not answer within it has stalled or is gone.
constexpr Nanoseconds kLinger = 200 * kMillisecond;
// The same where broken connections are made again: one that owes nothing itself stays so long for what the other end
// may owe, which takes it a handshake to say, on a busy machine.
constexpr Nanoseconds kLingerForOthers = kSecond;

}  // namespace

TcpEndpoint::TcpEndpoint(const TcpEndpointConfig& config, std::vector<SealedSocket> sockets)
    : config_(config),
      session_(config.session, std::move(sockets)),
      repair_(config.repair ? std::make_unique<TcpRepair>(*config.repair, &session_) : nullptr) {
  limits_.slot_bytes = config.session.slot_bytes;
  limits_.send_slots = limits_.recv_slots = config.session.slots;
  limits_.sends_from = {MemoryKind::kHost};
  if (config.session.lands) limits_.lands_in = {MemoryKind::kHost};
  limits_.may_be_made_again = repair_ != nullptr;
  if (session_.has_short_path()) {
    limits_.short_bytes = static_cast<uint32_t>(std::min<size_t>(limits_.slot_bytes, TcpSession::kMostShortBytes));
  }
}

EndpointStats TcpEndpoint::stats() const {
  EndpointStats stats = {.memory = session_.memory(), .retransmits = session_.Retransmits()};
  if (repair_ != nullptr) {
    stats.reconnects = repair_->reconnects();
    stats.bytes_sent_again = repair_->bytes_sent_again();
  }
  return stats;
}

Status TcpEndpoint::AcquireSlot(size_t, std::byte** slot) {
  if (!status_.ok()) return status_;
  std::byte* const taken = session_.LendSlot();
  if (taken == nullptr) return Status::WouldBlock();
  *slot = taken;
  return Status();
}

Status TcpEndpoint::PostSend(Send* send) {
  if (!status_.ok()) return status_;
  session_.Post(send);
  return Status();
}

Status TcpEndpoint::PostRecv(Recv* recv) {
  if (!status_.ok()) return status_;
  return session_.Post(recv) ? Status() : Status::WouldBlock();
}

void TcpEndpoint::Release(Recv* recv) { session_.Release(recv); }

Status TcpEndpoint::SendCopy(const Tag& tag, const std::byte* data, uint32_t bytes) {
  if (!status_.ok()) return status_;
  const bool lost = session_.write_ended() && !IsSuspended();
  if (!lost && !session_.SendCopy(tag, data, bytes)) return Status::WouldBlock();
  return session_.write_ended() && !IsSuspended() ? LostStatus() : Status();
}

Status TcpEndpoint::Progress(bool* moved) {
  if (!status_.ok()) return status_;
  Status broken = MoveData(moved);
  if (!broken.ok()) {
    Fail({broken.code(), "rank " + std::to_string(config_.peer) + ": " + broken.message() + " (" + Describe() + ")",
          config_.peer, 0});
    *moved = true;
  } else if (IsOver(moved)) {
    Fail(LostStatus());
    *moved = true;
  }
  return status_;
}

Status TcpEndpoint::MoveData(bool* moved) {
  if (state_ == State::kOpen) session_.Transmit(moved);
  ANNULUS_RETURN_IF_ERROR(session_.Receive(moved));
  return Repairs() || RepairsWhile(State::kEnding) ? repair_->Tend(moved) : Status();
}

// Notes the end of any lane. Returns true when nothing that is posted, or could still be delivered, can move any more.
bool TcpEndpoint::IsOver(bool* moved) {
  if (state_ == State::kOpen) {
    if (!session_.AnyEnded(Repairs())) return false;
    BeginEnding(moved);
  }
  if (IsConcluding()) return false;
  session_.GiveUpResuming();
  return session_.IsStuck();
}

void TcpEndpoint::BeginEnding(bool* moved) {
  if (Repairs()) repair_->Conclude();
  state_ = State::kEnding;
  session_.StopRetaining(moved);
  session_.ShutDownWrites();
}

Status TcpEndpoint::LostStatus() const {
  const int error = session_.failed_errno();
  const std::string name = "rank " + std::to_string(config_.peer);
  // A seal does not open what the peer has not sealed.
  if (error == EBADMSG) {
    return {Code::kProtocol, name + ": what came from it is not what it has encrypted (" + Describe() + ")",
            config_.peer, error};
  }
  std::string text = name;
  text += error == 0 ? " closed its connection" : " was lost: " + std::generic_category().message(error);
  if (session_.cut_short()) text += ", in the middle of a slice";
  return {Code::kPeerLost, text + " (" + Describe() + ")", config_.peer, error};
}

void TcpEndpoint::Fail(Status status) {
  status_ = std::move(status);
  session_.FailAll(status_.code());
  if (repair_ != nullptr) repair_->Stop();
  session_.CloseSockets();
  state_ = State::kClosed;
}

bool TcpEndpoint::Arm() {
  if (!status_.ok()) return false;
  if ((Repairs() || RepairsWhile(State::kEnding)) && !repair_->Arm()) return false;
  if (state_ == State::kEnding && !IsConcluding() && session_.IsStuck()) return false;
  return session_.Arm();
}

void TcpEndpoint::BeginClosing() {
  // Sends that are not complete, or go to a peer that has ended too, are given up.
  const bool delivers = Repairs() && !session_.has_sends();
  const bool lingers = delivers || (state_ == State::kOpen && session_.all_sent());
  status_ = {Code::kAborted, "the link with rank " + std::to_string(config_.peer) + " was closed"};
  session_.FailAll(status_.code());
  state_ = State::kLingering;
  if (lingers) linger_end_ = DeadlineAfter(delivers ? kLingerForOthers : kLinger);
  if (delivers) {
    deliver_end_ = DeadlineAfter(config_.repair->limit);
    repair_->Conclude();
  } else {
    if (repair_ != nullptr) repair_->Stop();
    session_.ShutDownWrites();
  }
}

// Whether the link stays for what the peer may lack of what was sent.
bool TcpEndpoint::IsWaitedFor() {
  session_.DiscardInput();
  if (deliver_end_ == 0) return !session_.Drained() && Now() < linger_end_;
  session_.WriteEnd();
  const TcpSession::Debt debt = session_.FindDebt();
  if (debt == TcpSession::Debt::kNothing) return false;
  const bool has_data = debt == TcpSession::Debt::kData;
  if (has_data) linger_end_ = DeadlineAfter(kLingerForOthers);
  if (Now() < (has_data ? deliver_end_ : linger_end_)) {
    bool moved = false;
    return repair_->Deliver(&moved).ok() && !repair_->gave_up();
  }
  if (has_data) {
    Log(LogLevel::kWarn, static_cast<int>(config_.repair->dial.hello.rank),
        "rank %d did not acknowledge in time what was sent to it last, and may not have it (%s)", config_.peer,
        Describe().c_str());
  }
  return false;
}

bool TcpEndpoint::Close() {
  if (state_ == State::kOpen || state_ == State::kEnding) BeginClosing();
  if (state_ == State::kClosed) return true;
  if (linger_end_ != 0 && IsWaitedFor()) return false;
  if (repair_ != nullptr) repair_->Stop();
  session_.CloseSockets();
  state_ = State::kClosed;
  return true;
}

}  // namespace annulus
