// What rank 0 answers those who have come to the rendezvous: the table of ranks, or why there is none.

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "collectives/control/arbiter_text.h"
#include "collectives/control/sockets/control_door.h"
#include "collectives/control/verdict.h"
#include "collectives/membership/bootstrap_host.h"
#include "transport/forked_child.h"

namespace annulus {
namespace {

// Time that ranks have to read the reason for the refusal.
constexpr Nanoseconds kRefusalGrace = 200 * kMillisecond;
// Least time that ranks have to take the table.
constexpr Nanoseconds kTableGrace = 500 * kMillisecond;
// Time in which a rank whose connection breaks comes back: to the rendezvous, or with its table to the control door.
// One that was reset at this side only learns of it by its next keepalive, a second later.
constexpr Nanoseconds kReturnGrace = 1700 * kMillisecond;

}  // namespace

void RendezvousHost::Refuse(const Status& status) {
  ByteWriter out;
  WriteStatus(status, &out);
  refusal_ = EncodeMessage(MessageType::kRefused, out.bytes());
  std::vector<std::shared_ptr<ControlStream>> streams;
  for (const auto& visitor : visitors_) streams.push_back(visitor->stream);
  for (const auto& seat : seats_) streams.push_back(seat ? seat->stream : nullptr);
  std::erase(streams, nullptr);
  for (const auto& stream : streams) {
    stream->Send(refusal_);
    stream->Finish();
  }
  // The ranks close when they have read it; closing first could reset the connection before that.
  const auto is_open = [](const auto& stream) { return stream->open(); };
  const Deadline limit = Now() + kRefusalGrace;
  while (std::any_of(streams.begin(), streams.end(), is_open) && Now() < limit) reactor_->WaitUntil(limit);
  for (const auto& stream : streams) stream->Close();
}

// For a while, those who come in are told the reason as soon as they have joined.
void RendezvousHost::RefuseLatecomers() {
  const Deadline limit = std::min(config_.deadline, DeadlineAfter(kLatecomerGrace));
  while (Now() < limit) {
    reactor_->WaitUntil(limit);
    std::erase_if(visitors_, [](const auto& visitor) { return !visitor->stream->open(); });
  }
}

// All ranks have joined. Whoever loses its connection before it has the table comes back to the rendezvous, which stays
// open meanwhile; whoever loses it later comes to the control door. Who does neither is gone: the others begin, and
// control tells them at once.
Status RendezvousHost::GiveTables(BootstrapResult* result) {
  TableMessage table;
  table.job_id = RandomNumber();
  table.ticket = RandomBytes(kTicketBytes);
  table.blobs.push_back(config_.blob);
  for (int rank = 1; rank < config_.nranks; ++rank) table.blobs.push_back(seats_[rank]->blob);
  ControlDoorPlace place;
  const Status opened = ListenForReturns(DoorHost(), &place.listener, &place.port);
  // Its control thread and its links need more than the door, and would fail when the others have begun.
  if (IsOutOfDescriptors(opened.os_errno()))
    return OutOfDescriptors(config_.rank, "its control door", opened.os_errno());
  if (!opened.ok()) Log(LogLevel::kInfo, config_.rank, "no way back for ranks: %s", opened.message().c_str());
  table.door_port = static_cast<uint16_t>(place.port);
  place.ticket = table.ticket;
  result->connections.SetDoor(std::move(place));
  OpenControlDoor(table.job_id, &result->connections);
  table_ = EncodeMessage(MessageType::kTable, Encode(table));
  for (int rank = 1; rank < config_.nranks; ++rank) seats_[rank]->stream->Send(table_);
  AwaitTaken();
  ANNULUS_RETURN_IF_ERROR(failure_);
  result->job_id = table.job_id;
  result->blobs = std::move(table.blobs);
  std::vector<int> late;
  for (int rank = 1; rank < config_.nranks; ++rank) {
    if (!seats_[rank]->has_table() && seats_[rank]->lost_at == 0) late.push_back(rank);
  }
  if (late.empty()) return Status();
  const char* verb = late.size() == 1 ? " does not take" : " do not take";
  return {Code::kTimeout, RankList(late) + verb + " the table of ranks (stopped or unreachable)", late.front(), 0};
}

// The address of this host that all ranks have reached, or all addresses if they have reached different ones.
std::string RendezvousHost::DoorHost() const {
  std::string host;
  for (const auto& seat : seats_) {
    if (!seat) continue;
    const std::string own = HostText(seat->ends.local);
    if (host.empty()) host = own;
    if (own != host)
      return own.find(':') == std::string::npos && host.find(':') == std::string::npos ? "0.0.0.0" : "::";
  }
  return host;
}

void RendezvousHost::OpenControlDoor(uint64_t job_id, ControlConnections* connections) {
  const ControlDoorPlace& place = connections->door();
  const int listener = place.listener < 0 ? -1 : ::fcntl(place.listener, F_DUPFD_CLOEXEC, 0);
  if (listener < 0) return;
  CloseInForkedChildren(listener);
  const auto expects = [](int rank) { return rank > 0; };
  const auto returned = [this, connections](int rank, SealedFd connection) {
    OnReturned(rank, std::move(connection), connections);
  };
  control_door_ = std::make_unique<ControlDoor>(
      &reactor_->context(), config_.job_key + place.ticket,
      ControlHello({config_.identity.run, job_id}, config_.rank, config_.nranks, config_.encrypts), expects, returned);
  const Status opened = control_door_->Open(listener);
  if (opened.ok()) return;
  Log(LogLevel::kInfo, config_.rank, "%s", opened.message().c_str());
  control_door_ = nullptr;
}

void RendezvousHost::OnReturned(int rank, SealedFd returned, ControlConnections* connections) {
  ControlConnection connection = ControlConnections::EndsOf(returned.fd);
  connection.seal = std::move(returned.seal);
  connection.resumes = true;
  connections->Put(rank, std::move(connection));
  Visitor& seat = *seats_[rank];
  seat.returned = true;
  if (seat.stream) seat.stream->Abandon();
}

void RendezvousHost::AwaitTaken() {
  const Deadline limit = std::min(config_.deadline, std::max(DecideBy(), DeadlineAfter(kTableGrace)));
  const auto done_at = [&](const auto& seat) -> Deadline {
    if (!seat || seat->has_table() || seat->ended) return 0;
    return seat->lost_at != 0 ? seat->lost_at + kReturnGrace : limit;
  };
  for (;;) {
    Deadline all_done = 0;
    for (const auto& seat : seats_) all_done = std::max(all_done, done_at(seat));
    if (Now() >= std::min(limit, all_done) || GivesUp()) return;
    reactor_->WaitUntil(std::min(limit, all_done));
    DropSlow();
  }
}

Status RendezvousHost::Begin(BootstrapResult* result) {
  const EncodedMessage begin = EncodeMessage(MessageType::kBegin, "");
  for (int rank = 1; rank < config_.nranks; ++rank) {
    Visitor& seat = *seats_[rank];
    if (rank == 1) result->local_host = LocalHostOf(seat.ends.local);
    if (seat.returned) continue;
    if (seat.taken) seat.stream->Send(begin);
    const bool may_return = !seat.ended && (!control_door_ || Now() < seat.lost_at + kReturnGrace);
    SealedFd kept = seat.taken ? seat.stream->Release() : SealedFd();
    if (kept.fd < 0 && !may_return) continue;  // Gone.
    result->connections.Put(rank, {kept.fd, seat.ends.local, seat.ends.peer, false, std::move(kept.seal)});
  }
  control_door_ = nullptr;
  return Status();
}

}  // namespace annulus
