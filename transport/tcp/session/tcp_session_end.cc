// How a session's connections break, are replaced, and end.
//
// Threads: those of the endpoint.
#include <algorithm>
#include <string>
#include <utility>

#include "transport/tcp/session/tcp_session.h"

namespace annulus {

bool TcpSession::AnyEnded(bool resumes) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [resumes](const auto& lane) {
    return (lane->socket.read_ended() || lane->socket.write_ended()) && !(resumes && IsSuspended(*lane));
  });
}

uint64_t TcpSession::Freeze(int lane) {
  Lane& frozen = *lanes_[static_cast<size_t>(lane)];
  return frozen.received + frozen.socket.Freeze();
}

Status TcpSession::Resume(int index, SealedSocket socket, uint64_t received, uint64_t* again, bool* moved) {
  Lane& lane = *lanes_[static_cast<size_t>(index)];
  TcpRetained& retained = lane.retained;
  TakeWritten(&lane, lane.socket.TakeBegun(), moved);
  const uint64_t sent = lane.position();
  if (received < retained.begin() || received > sent) {
    return {Code::kProtocol, "cannot resume: it has " + std::to_string(received) + " bytes of lane " +
                                 std::to_string(index) + ", expected " + std::to_string(retained.begin()) + " to " +
                                 std::to_string(sent)};
  }
  retained.Confirm(received, [&](Send* send) { sends_.MarkDone(send, moved); });
  const bool within_retained = received <= retained.end();
  if (within_retained) retained.WriteAgainFrom(received);
  lane.writer.BeginAgainFrom(within_retained ? 0 : received - retained.end());
  lane.socket.Replace(std::move(socket));
  if (writes_shut_) lane.socket.ShutDownWrites();
  *again = sent - received;
  return Status();
}

void TcpSession::GiveUpResuming() {
  for (auto& lane : lanes_) lane->socket.GiveUp();
}

bool TcpSession::IsStuck() const {
  bool all_ended = true;
  for (const auto& lane : lanes_) {
    const bool ended = lane->socket.read_ended();
    if (!ended && !IsPaused(*lane)) return false;  // Its end, or more data, is still to come.
    all_ended &= ended;
  }
  // A paused lane waits for a receive that only the engine can post. If neither sends nor receives are pending, the
  // engine may still post it.
  return all_ended || !receives_.empty() || !sends_.empty();
}

bool TcpSession::all_sent() const {
  return sends_.untaken() == nullptr && std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
           return lane->writer.empty() && !lane->retained.has_unwritten();
         });
}

int TcpSession::failed_errno() const {
  for (const auto& lane : lanes_) {
    if (lane->socket.failed_errno() != 0) return lane->socket.failed_errno();
  }
  return 0;
}

bool TcpSession::cut_short() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return lane->socket.read_ended() && lane->reader.within_frame(); });
}

void TcpSession::ShutDownWrites() {
  writes_shut_ = true;
  for (auto& lane : lanes_) lane->socket.ShutDownWrites();
}

void TcpSession::StopRetaining(bool* moved) {
  for (auto& lane : lanes_) lane->retained.ReturnLent([&](Send* send) { sends_.MarkDone(send, moved); });
}

void TcpSession::FailAll(Code code) {
  sends_.FailAll(code);
  receives_.FailAll(code);
}

// A peer that has ended its direction sends nothing that could make this kernel reset the connection: what is still on
// its way arrives after the socket is closed, and a peer that is gone acknowledges nothing.
bool TcpSession::Drain() {
  bool drained = true;
  for (auto& lane : lanes_) {
    lane->socket.DiscardInput();
    drained &= lane->socket.read_ended() || lane->socket.Unacknowledged() == 0;
  }
  return drained;
}

void TcpSession::CloseSockets() {
  for (auto& lane : lanes_) lane->socket.Close();
}

}  // namespace annulus
