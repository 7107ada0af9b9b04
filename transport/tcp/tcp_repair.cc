#include "transport/tcp/tcp_repair.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transport/tcp/socket/tcp_options.h"
#include "transport/tcp/socket/tcp_path.h"

namespace annulus {

TcpRepair::TcpRepair(const TcpRepairConfig& config, TcpSession* session)
    : config_(config),
      session_(session),
      lanes_(static_cast<size_t>(config.lanes)),
      alarm_(config.reactor->context().get_executor()),
      look_(config.reactor->context().get_executor()) {
  if (config_.door != nullptr) config_.door->Add(config_.peer, config_.channel, this);
}

void TcpRepair::Stop() {
  if (config_.door != nullptr) config_.door->Remove(config_.peer, config_.channel);
  for (Work& work : lanes_) {
    if (work.redial != nullptr) std::exchange(work.redial, nullptr)->Cancel();
    if (work.greeting != nullptr) std::exchange(work.greeting, nullptr)->Cancel();
    work.active = false;
  }
  busy_ = false;
}

void TcpRepair::Conclude() { concludes_by_ = DeadlineAfter(config_.limit); }

Status TcpRepair::Deliver(bool* moved) {
  if (dials()) Look();
  return TendLanes(moved);
}

bool TcpRepair::Expects(int lane, uint32_t connection) const {
  return !gave_up_ && lane < config_.lanes && connection > lanes_[static_cast<size_t>(lane)].connection;
}

// The peer may know before this end that the old connection is broken.
void TcpRepair::Welcome(int lane, uint32_t connection, SealedSocket socket) {
  Work& work = lanes_[static_cast<size_t>(lane)];
  if (work.greeting != nullptr) Supersede(lane);
  work.connection = connection;
  Begin(lane);
  Greet(lane, std::move(socket));
}

// While the rank waits, the connections in use are looked at from time to time. Returns whether there is something to
// tend.
bool TcpRepair::Look() {
  if (look_.is_set()) return false;
  look_.Set(TcpPulse::kLook);
  bool begun = false;
  asks_ = false;
  for (int lane = 0; lane < config_.lanes; ++lane) {
    begun |= LookAt(lane);
    asks_ |= lanes_[static_cast<size_t>(lane)].pulse.asks();
  }
  return begun;
}

// Something came: an idle connection must not be asked from now on.
void TcpRepair::StopAsking() {
  for (int lane = 0; lane < config_.lanes; ++lane) {
    lanes_[static_cast<size_t>(lane)].pulse.StopAsking(session_->fd(lane));
  }
  asks_ = false;
}

// Returns whether the lane is to get another connection since a moment ago.
bool TcpRepair::LookAt(int lane) {
  Work& work = lanes_[static_cast<size_t>(lane)];
  if (session_->is_suspended(lane)) return false;
  const TcpPulse::Watched watched{session_->fd(lane), session_->awaits_slice(), session_->carried(lane)};
  const bool is_silent = work.pulse.IsSilent(watched, [this, lane] { return session_->Ask(lane); });
  if (is_silent && !work.active) return Begin(lane), true;
  // Once it was asked for another connection, the peer may have given up the old one.
  if (is_silent || work.redial == nullptr || session_->expects_another(lane)) return false;
  CallOff(&work);
  return false;
}

void TcpRepair::CallOff(Work* work) {
  work->active = false;
  if (work->redial == nullptr) return;
  work->connection = work->redial->connection();
  std::exchange(work->redial, nullptr)->Cancel();
}

void TcpRepair::Begin(int lane) {
  Work& work = lanes_[static_cast<size_t>(lane)];
  if (std::exchange(work.active, true)) return;
  busy_ = true;
  if (dials()) work.broken_since = Now();
}

void TcpRepair::Dial(int lane) {
  Work& work = lanes_[static_cast<size_t>(lane)];
  TcpRedial::Plan plan = config_.dial;
  plan.hello.lane = static_cast<uint16_t>(lane);
  plan.hello.connection = work.connection;
  plan.on_asking = [this, lane] { session_->ExpectAnother(lane); };
  plan.on_connected = [this, lane](SealedSocket socket) { Greet(lane, std::move(socket)); };
  work.redial = std::make_shared<TcpRedial>(&config_.reactor->context(), std::move(plan));
  const std::shared_ptr<TcpRedial> redial = work.redial;
  redial->Start();
}

void TcpRepair::Greet(int lane, SealedSocket socket) {
  Work& work = lanes_[static_cast<size_t>(lane)];
  if (work.redial != nullptr) work.connection = std::exchange(work.redial, nullptr)->connection();
  work.greeted = work.peer_is_gone = false;
  work.broken_since.reset();  // The greeting comes when the peer is in a call.
  work.greeting = std::make_shared<TcpGreeting>(std::move(socket));
  const std::shared_ptr<TcpGreeting> greeting = work.greeting;
  greeting->Start(session_->Freeze(lane),
                  [this, lane](const Status& status, uint64_t received) { OnGreeting(lane, status, received); });
}

// After an error the dialling end begins again in Tend.
void TcpRepair::OnGreeting(int lane, const Status& status, uint64_t received) {
  Work& work = lanes_[static_cast<size_t>(lane)];
  if (status.ok()) {
    work.greeted = true;
    work.received = received;
    return;
  }
  if (status.code() == Code::kProtocol) failure_ = status;
  work.peer_is_gone = status.code() == Code::kPeerLost && status.os_errno() == 0;
  std::exchange(work.greeting, nullptr)->Cancel();
  if (dials()) work.broken_since = Now();
}

// The connection that is being made is broken too, or taken for it. Once the peer has heard this end's greeting, what
// it sends counts as received, so all that has arrived is taken over before the next greeting. The peer's own greeting
// comes before it.
void TcpRepair::Supersede(int lane) {
  Work& work = lanes_[static_cast<size_t>(lane)];
  StopTaking(work.greeting->fd());
  if (!work.greeted) work.greeting->Look();
  if (work.greeted) {
    if (const Status status = PutIntoUse(lane, &moved_); !status.ok()) failure_ = status;
  } else if (work.greeting != nullptr) {
    std::exchange(work.greeting, nullptr)->Cancel();
  }
}

Status TcpRepair::PutIntoUse(int lane, bool* moved) {
  Work& work = lanes_[static_cast<size_t>(lane)];
  SealedSocket socket = std::exchange(work.greeting, nullptr)->TakeSocket();
  work.greeted = work.active = false;
  work.pulse = TcpPulse();
  ANNULUS_RETURN_IF_ERROR(TuneSocket(socket.socket.native_handle(), config_.same_host));
  uint64_t again = 0;
  ANNULUS_RETURN_IF_ERROR(session_->Resume(lane, std::move(socket), work.received, &again, moved));
  reconnects_.fetch_add(1, std::memory_order_relaxed);
  bytes_sent_again_.fetch_add(again, std::memory_order_relaxed);
  Log(LogLevel::kInfo, static_cast<int>(config_.dial.hello.rank),
      "connection %d with rank %d, channel %d, was made again; %llu bytes are sent again", lane, config_.peer,
      config_.channel, static_cast<unsigned long long>(again));
  *moved = true;
  return Status();
}

Status TcpRepair::TendLanes(bool* moved) {
  if (gave_up_) return Status();
  // Other lanes may keep the caller from ever waiting in the reactor.
  config_.reactor->WaitUntil(Now());
  ANNULUS_RETURN_IF_ERROR(failure_);
  *moved |= std::exchange(moved_, false);
  if (asks_ && *moved) StopAsking();
  const Nanoseconds now = Now();
  busy_ = false;
  for (int lane = 0; lane < config_.lanes && !gave_up_; ++lane) {
    ANNULUS_RETURN_IF_ERROR(TendLane(lane, now, moved));
    busy_ |= lanes_[static_cast<size_t>(lane)].active;
  }
  if (gave_up_) {
    // What came over a connection that is ready is delivered before the end.
    for (int lane = 0; lane < config_.lanes; ++lane) {
      if (lanes_[static_cast<size_t>(lane)].greeted) ANNULUS_RETURN_IF_ERROR(PutIntoUse(lane, moved));
    }
    Stop();
    *moved = true;
  }
  return Status();
}

Status TcpRepair::TendLane(int lane, Nanoseconds now, bool* moved) {
  Work& work = lanes_[static_cast<size_t>(lane)];
  if (!work.active && session_->IsBroken(lane)) Begin(lane);
  if (!work.active) return Status();
  if (work.greeted) return PutIntoUse(lane, moved);
  if (concludes_by_ && !Concludes(lane, now)) return Status();
  // The dialling end gives up, once its rank is in a call, where it finds no path. The accepting end could not tell
  // that from a peer that computes; if the peer has died, or never calls, control and the call's deadline end the wait.
  if (!dials() || work.greeting != nullptr) return Status();
  if (work.redial == nullptr) Dial(lane);
  if (concludes_by_) return Status();
  // A rank that computes answers when it is done, however long that takes.
  const bool has_path = work.redial != nullptr && work.redial->awaits_answer();
  if (has_path || !session_->is_suspended(lane)) work.broken_since = now;
  if (!work.broken_since) work.broken_since = now;
  gave_up_ = now - *work.broken_since > config_.limit;
  return Status();
}

// Whether there still is something to repair, for a link that one end has ended.
bool TcpRepair::Concludes(int lane, Nanoseconds now) {
  Work& work = lanes_[static_cast<size_t>(lane)];
  if (session_->has_ended(lane)) {
    CallOff(&work);
    return false;
  }
  const bool is_turned_away = work.redial != nullptr && work.redial->is_turned_away();
  gave_up_ = now > *concludes_by_ || is_turned_away || work.peer_is_gone;
  return !gave_up_;
}

bool TcpRepair::Arm() {
  if (gave_up_) return true;
  if (dials() && Look()) return false;
  if (!busy_) return !session_->AnyBroken();
  Nanoseconds first = concludes_by_ ? *concludes_by_ - Now() : config_.limit;
  for (const Work& work : lanes_) {
    if (work.greeted) return false;
    if (work.broken_since) first = std::min(first, *work.broken_since + config_.limit - Now());
  }
  alarm_.Set(std::max<Nanoseconds>(first, 0) + kMillisecond);
  return true;
}

}  // namespace annulus
