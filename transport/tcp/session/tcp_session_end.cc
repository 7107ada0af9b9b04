// How a session's connections break, are replaced, and end.
//
// Threads: those of the endpoint.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "transport/tcp/session/tcp_session.h"
#include "transport/tcp/socket/io_list.h"

namespace annulus {
namespace {

// Largest number of reads of a lane per call of DiscardInput, as a bound against a peer that never stops sending.
constexpr int kMaxDiscardReads = 256;

}  // namespace

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
  OnWritten(&lane, lane.socket.TakeBegun(), moved);
  const uint64_t sent = lane.position();
  if (received < retained.begin() || received > sent) {
    return {Code::kProtocol, "cannot resume: it has " + std::to_string(received) + " bytes of lane " +
                                 std::to_string(index) + ", expected " + std::to_string(retained.begin()) + " to " +
                                 std::to_string(sent)};
  }
  retained.Confirm(received, [&](Send* send) { sends_.MarkDone(send, moved); });
  lane.socket.Replace(std::move(socket));
  *again = 0;
  // What is kept may lie in memory that its owner has back.
  if (has_shut_down_) return lane.socket.ShutDownWrites(), Status();
  const bool within_retained = received <= retained.end();
  if (within_retained) retained.WriteAgainFrom(received);
  lane.writer.BeginAgainFrom(within_retained ? 0 : received - retained.end());
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
  has_shut_down_ = true;
  for (auto& lane : lanes_) lane->socket.ShutDownWrites();
}

void TcpSession::StopRetaining(bool* moved) {
  for (auto& lane : lanes_) lane->retained.ReturnLent([&](Send* send) { sends_.MarkDone(send, moved); });
}

void TcpSession::FailAll(Code code) {
  sends_.FailAll(code);
  receives_.FailAll(code);
}

// It counts, since it may have to be said to the peer how much has come.
void TcpSession::DiscardInput() {
  std::array<std::byte, 16384> waste;
  for (auto& lane : lanes_) {
    for (int reads = 0; !lane->socket.read_ended() && reads < kMaxDiscardReads; ++reads) {
      IoList list;
      list.Add(waste.data(), waste.size());
      const size_t bytes = lane->socket.Read(&list);
      lane->received += bytes;
      if (bytes == 0) break;
    }
  }
}

// A peer that has ended its direction sends nothing that could make this kernel reset the connection: what is still on
// its way arrives after the socket is closed, and a peer that is gone acknowledges nothing.
bool TcpSession::Drained() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return lane->socket.read_ended() || lane->socket.IsDelivered(); });
}

void TcpSession::CloseSockets() {
  for (auto& lane : lanes_) lane->socket.Close();
}

void TcpSession::WriteEnd() {
  bool moved = false;
  for (auto& lane : lanes_) {
    if (IsSuspended(*lane)) continue;
    while (!lane->socket.write_ended() && lane->retained.has_unwritten()) {
      if (WriteOnce(lane.get(), &moved) == 0 || lane->socket.write_blocked()) break;
    }
    if (!lane->socket.write_ended() && !lane->retained.has_unwritten()) lane->socket.ShutDownWrites();
  }
}

TcpSession::Debt TcpSession::FindDebt() {
  Debt debt = Debt::kNothing;
  for (auto& lane : lanes_) debt = std::max(debt, FindDebt(lane.get()));
  return debt;
}

// The peer ends its direction too as soon as it hears of the end on one lane, while data is still on its way to it on
// others. So only an acknowledgement tells that it has the data, and a connection that the kernel has dropped does not.
TcpSession::Debt TcpSession::FindDebt(Lane* lane) {
  TcpSocket& socket = lane->socket;
  const uint64_t position = lane->position();
  const uint64_t missing = socket.Unacknowledged();
  if (missing <= position) lane->retained.Confirm(position - missing, [](Send*) {});
  const bool asks_only = lane->asks_end == lane->retained.end() && lane->retained.begin() >= lane->asks_begin;
  if (lane->retained.begin() != lane->retained.end() && !asks_only) {
    if (socket.read_ended() || socket.write_ended()) socket.BreakIfDropped();
    return Debt::kData;
  }
  return !IsSuspended(*lane) && (socket.read_ended() || socket.IsDelivered()) ? Debt::kNothing : Debt::kEnd;
}

}  // namespace annulus
