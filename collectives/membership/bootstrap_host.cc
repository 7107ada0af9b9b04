// One loop that accepts, authenticates and seats, driven by the reactor until all ranks have joined, time is up or
// ranks contradict each other.
#include "collectives/membership/bootstrap_host.h"

#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <asio/error.hpp>
#include <chrono>

#include "base/parse.h"
#include "collectives/control/arbiter_text.h"
#include "collectives/control/verdict.h"

namespace annulus {
namespace {

// A connection that has not joined after this time is dropped. A rank needs far less time, and connects again anyway.
constexpr Nanoseconds kVisitorLimit = 5 * kSecond;
// Most visitors beyond the ranks that are due; when there are more, the slowest one is dropped.
constexpr size_t kMostStrangers = 64;
// Pause between attempts to listen, in case another communicator of this job is just closing.
constexpr Nanoseconds kListenRetry = 20 * kMillisecond;
// Pause in accepting when descriptors have run out.
constexpr Nanoseconds kAcceptPause = 20 * kMillisecond;
// The answer is sent this long before the first rank's deadline, at most a tenth of the whole time.
constexpr Nanoseconds kAnswerMargin = 300 * kMillisecond;
// Time that the bootstrap stays open once it is known to fail, so that ranks just starting learn the reason.
constexpr Nanoseconds kLatecomerGrace = kSecond;
// Time that ranks have to read the reason for the refusal.
constexpr Nanoseconds kRefusalGrace = 200 * kMillisecond;

void SetCloseOnExec(int fd) { ::fcntl(fd, F_SETFD, FD_CLOEXEC); }

}  // namespace

RendezvousHost::RendezvousHost(const BootstrapConfig& config, Reactor* reactor)
    : config_(config),
      reactor_(reactor),
      start_(Now()),
      strays_(config.rank),
      listener_(reactor->context()),
      pause_(reactor->context()),
      seats_(config.nranks),
      patience_ends_(config.deadline) {}

RendezvousHost::~RendezvousHost() {
  CloseDoor();
  for (const auto& seat : seats_) {
    if (seat && seat->channel) seat->channel->Close();
  }
}

Status RendezvousHost::Run(BootstrapResult* result) {
  ANNULUS_RETURN_IF_ERROR(OpenListener());
  Accept();
  while (seated_ < config_.nranks - 1 && Now() < DecideBy() && !GivesUp()) {
    Deadline wake = DecideBy();
    for (const auto& visitor : visitors_) wake = std::min(wake, visitor->limit);
    reactor_->WaitUntil(wake);
    DropSlow();
  }
  CloseDoor();  // Before the answer: a rank that has it may connect for the next communicator.
  strays_.LogSummary();
  if (failure_.ok() && seated_ < config_.nranks - 1) failure_ = Missing();
  if (failure_.ok()) return SendTables(result);
  Refuse(failure_);
  return failure_;
}

Status RendezvousHost::OpenListener() {
  std::vector<StreamEndpoint> endpoints;
  ANNULUS_RETURN_IF_ERROR(Resolve(config_.rendezvous, config_.deadline, &endpoints));
  for (;;) {
    const Status status = TryListen(endpoints);
    if (status.os_errno() != EADDRINUSE) return status;
    if (GivesUp()) return failure_;
    if (Now() + kListenRetry >= config_.deadline) {
      return Status(Code::kSystem,
                    "rank 0 cannot listen at the rendezvous " + config_.rendezvous +
                        ": the port is in use, perhaps by another job or a second rank 0",
                    Status::kNoRank, EADDRINUSE);
    }
    reactor_->WaitUntil(Now() + kListenRetry);
  }
}

// Listens on the rendezvous's own address, so that nothing else is exposed. Listens on all addresses if that one does
// not belong to this host but, for example, to a forwarder.
Status RendezvousHost::TryListen(const std::vector<StreamEndpoint>& endpoints) {
  Status status;
  for (const StreamEndpoint& endpoint : endpoints) {
    status = Listen(reactor_, endpoint, SetCloseOnExec, &listener_);
    if (status.ok()) return status;
    if (status.os_errno() != EADDRNOTAVAIL && status.os_errno() != EAFNOSUPPORT) return status;
  }
  std::string host;
  int port = 0;
  if (!ParseAddress(config_.rendezvous, &host, &port)) return status;
  for (const char* all : {"::", "0.0.0.0"}) {
    StreamEndpoint endpoint;
    ANNULUS_RETURN_IF_ERROR(MakeEndpoint(all, port, &endpoint));
    status = Listen(reactor_, endpoint, SetCloseOnExec, &listener_);
    if (status.ok() || status.os_errno() == EADDRINUSE) return status;
  }
  return status;
}

void RendezvousHost::Accept() {
  auto socket = std::make_shared<StreamSocket>(reactor_->context());
  listener_.async_accept(*socket, [this, socket](const asio::error_code& error) {
    if (!listener_.is_open()) return;
    if (!error) Greet(std::move(*socket));
    if (!error || error == asio::error::connection_aborted) return Accept();
    pause_.expires_after(std::chrono::nanoseconds(kAcceptPause));
    pause_.async_wait([this](const asio::error_code& cancelled) {
      if (!cancelled && listener_.is_open()) Accept();
    });
  });
}

void RendezvousHost::Greet(StreamSocket socket) {
  if (visitors_.size() >= kMostStrangers + seats_.size()) {
    Drop(visitors_.front().get(), Strays::kCrowded, "the oldest of too many connections that have not joined");
  }
  SetCloseOnExec(socket.native_handle());
  Visitor* visitor = visitors_.emplace_back(std::make_unique<Visitor>()).get();
  asio::error_code error;
  visitor->from = EndpointText(socket.remote_endpoint(error));
  visitor->limit = Now() + kVisitorLimit;
  visitor->handshake = std::make_shared<StreamHandshake>(std::move(socket), Handshake::Role::kAcceptor, config_.job_key,
                                                         RendezvousHello(config_.rank));
  visitor->handshake->Start([](const Hello&) { return StreamHandshake::Verdict::kWelcome; },
                            [this, visitor](const Status& status) { TakeProven(visitor, status); });
}

void RendezvousHost::TakeProven(Visitor* visitor, const Status& status) {
  if (!status.ok()) {
    Strays::Reason reason = Strays::kNoHello;
    if (status.code() == Code::kAuth) reason = Strays::kWrongKey;
    if (status.code() == Code::kPeerLost)
      reason = visitor->handshake->owes_proof() ? Strays::kLeftUnproven : Strays::kLeft;
    return Drop(visitor, reason, status.message());
  }
  const std::shared_ptr<StreamHandshake> handshake = std::move(visitor->handshake);
  visitor->rank = static_cast<int>(std::min<uint32_t>(handshake->peer().rank, std::numeric_limits<int>::max()));
  asio::error_code error;
  const int fd = handshake->TakeSocket().release(error);
  if (error) return Drop(visitor, Strays::kLeft, error.message());
  const Status created = ControlChannel::Create(&reactor_->context(), fd, kMostJoinBytes, &visitor->channel);
  if (!created.ok()) return Drop(visitor, Strays::kLeft, created.message());
  visitor->channel->Start(
      {[this, visitor](MessageType type, std::span<const std::byte> body) { TakeMessage(visitor, type, body); },
       [this, visitor](const Status& cause) { TakeClosed(visitor, cause); }});
}

void RendezvousHost::TakeMessage(Visitor* visitor, MessageType type, std::span<const std::byte> body) {
  JoinMessage join;
  if (visitor->seated || type != MessageType::kJoin || !Decode(body, &join)) {
    visitor->channel->Close();
    return TakeClosed(visitor, Status(Code::kProtocol, "a message that has no place in a rendezvous"));
  }
  Seat(visitor, join);
}

// An authenticated rank that contradicts the others ends the bootstrap soon: waiting cannot help, but all ranks should
// learn of it.
void RendezvousHost::Seat(Visitor* visitor, const JoinMessage& join) {
  const int rank = visitor->rank;
  const std::string name = RankList({rank});
  std::string contradiction;
  if (join.nranks != static_cast<uint32_t>(config_.nranks)) {
    contradiction = name + " (" + visitor->from + ") was started for " + std::to_string(join.nranks) +
                    " ranks, rank 0 for " + std::to_string(config_.nranks);
  } else if (rank >= config_.nranks) {
    contradiction = "a process at " + visitor->from + " claims " + name + " of " + std::to_string(config_.nranks);
  } else if (seats_[rank]) {
    contradiction = "two processes claim " + name + " (" + seats_[rank]->from + " and " + visitor->from + ")";
  }
  if (!contradiction.empty()) {
    if (failure_.ok()) failure_ = Status(Code::kMismatch, contradiction, rank, 0);
    visitor->limit = kNoDeadline;  // It waits for the answer.
    patience_ends_ = std::min(patience_ends_, Now() + kLatecomerGrace);
    return;
  }
  visitor->blob = join.blob;
  visitor->seated = true;
  patience_ends_ = std::min(patience_ends_, DeadlineAfter(join.patience));
  seats_[rank] = Remove(visitor);
  ++seated_;
}

void RendezvousHost::TakeClosed(Visitor* visitor, const Status& cause) {
  if (refusing_) return;  // They have read the reason.
  const std::string why = cause.ok() ? "it closed the connection" : cause.message();
  if (!visitor->seated) return Drop(visitor, cause.code() == Code::kProtocol ? Strays::kNoHello : Strays::kLeft, why);
  Log(LogLevel::kWarn, config_.rank, "rank %d (%s) left the rendezvous again: %s", visitor->rank, visitor->from.c_str(),
      why.c_str());
  --seated_;
  seats_[visitor->rank].reset();
}

void RendezvousHost::Drop(Visitor* visitor, Strays::Reason reason, const std::string& detail) {
  last_stray_ = visitor->from + ": " + detail;
  strays_.Add(reason, visitor->from, detail);
  const std::unique_ptr<Visitor> dropped = Remove(visitor);
  if (dropped->handshake) dropped->handshake->Cancel();
  if (dropped->channel) dropped->channel->Close();
}

void RendezvousHost::DropSlow() {
  const Nanoseconds now = Now();
  for (auto next = visitors_.begin(); next != visitors_.end();) {
    Visitor* const visitor = (next++)->get();
    if (visitor->limit <= now) Drop(visitor, Strays::kSlow, "it did not join in time");
  }
}

std::unique_ptr<RendezvousHost::Visitor> RendezvousHost::Remove(Visitor* visitor) {
  const auto place =
      std::find_if(visitors_.begin(), visitors_.end(), [&](const auto& other) { return other.get() == visitor; });
  std::unique_ptr<Visitor> removed = std::move(*place);
  visitors_.erase(place);
  return removed;
}

Deadline RendezvousHost::DecideBy() const {
  return patience_ends_ - std::min(kAnswerMargin, (patience_ends_ - start_) / 10);
}

bool RendezvousHost::GivesUp() {
  if (!config_.give_up || !failure_.ok()) return false;  // A contradiction already ends this.
  failure_ = config_.give_up();
  return !failure_.ok();
}

void RendezvousHost::CloseDoor() {
  asio::error_code ignored;
  listener_.close(ignored);
  pause_.cancel();
  for (const auto& visitor : visitors_) {
    if (visitor->handshake) visitor->handshake->Cancel();
    // A rank that joined and contradicted others is told the reason.
    if (visitor->channel && failure_.ok()) visitor->channel->Close();
  }
}

Status RendezvousHost::Missing() const {
  std::vector<int> missing;
  for (int rank = 1; rank < config_.nranks; ++rank) {
    if (!seats_[rank]) missing.push_back(rank);
  }
  std::string text =
      RankList(missing) + " did not arrive within " + SecondsText(Now() - start_) + " at " + config_.rendezvous;
  if (!last_stray_.empty()) text += " (connections were dropped, the last from " + last_stray_ + ")";
  return Status(Code::kTimeout, text, missing.front(), 0);
}

void RendezvousHost::Refuse(const Status& status) {
  refusing_ = true;
  ByteWriter out;
  WriteStatus(status, &out);
  const Frame frame = MakeFrame(MessageType::kRefused, out.bytes());
  std::vector<std::shared_ptr<ControlChannel>> channels;
  for (const auto& visitor : visitors_) channels.push_back(visitor->channel);
  for (const auto& seat : seats_) channels.push_back(seat ? seat->channel : nullptr);
  std::erase(channels, nullptr);
  for (const auto& channel : channels) {
    channel->Send(frame);
    channel->Finish();
  }
  // The ranks close when they have read it; closing first could reset the connection before that.
  const auto is_open = [](const auto& channel) { return channel->open(); };
  const Deadline limit = Now() + kRefusalGrace;
  while (std::any_of(channels.begin(), channels.end(), is_open) && Now() < limit) reactor_->WaitUntil(limit);
  for (const auto& channel : channels) channel->Close();
}

Status RendezvousHost::SendTables(BootstrapResult* result) {
  TableMessage table;
  if (::getrandom(&table.job_id, sizeof table.job_id, 0) != sizeof table.job_id) {
    return Status::System("drawing the job's id", errno);
  }
  table.blobs.push_back(config_.blob);
  for (int rank = 1; rank < config_.nranks; ++rank) table.blobs.push_back(seats_[rank]->blob);
  const Frame frame = MakeFrame(MessageType::kTable, Encode(table));
  for (int rank = 1; rank < config_.nranks; ++rank) {
    seats_[rank]->channel->StopReading();  // Later messages are for the control thread.
    seats_[rank]->channel->Send(frame);
  }
  for (int rank = 1; rank < config_.nranks; ++rank) {
    ControlChannel& channel = *seats_[rank]->channel;
    while (!channel.drained() && Now() < config_.deadline) reactor_->WaitUntil(config_.deadline);
    if (!channel.drained()) {
      return Status(Code::kTimeout, RankList({rank}) + " does not take the table of ranks (stopped or unreachable)",
                    rank, 0);
    }
    const int fd = channel.Release();
    if (fd < 0) return Status(Code::kPeerLost, "lost the connection to " + RankList({rank}), rank, 0);
    if (rank == 1) result->local_host = LocalHostOf(fd);
    result->connections.Put(rank, fd);
  }
  result->job_id = table.job_id;
  result->blobs = std::move(table.blobs);
  return Status();
}

}  // namespace annulus
