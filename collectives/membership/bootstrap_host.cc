// One loop that accepts, authenticates and seats, driven by the reactor until all ranks have joined, time is up or
// ranks contradict each other.
#include "collectives/membership/bootstrap_host.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/parse.h"
#include "collectives/control/arbiter_text.h"
#include "collectives/control/verdict.h"
#include "transport/forked_child.h"

namespace annulus {
namespace {

// A connection that has not joined after this time is dropped. A rank needs far less time, and connects again anyway.
constexpr Nanoseconds kVisitorLimit = 5 * kSecond;
// Pause between attempts to listen, in case another communicator of this job is just closing.
constexpr Nanoseconds kListenRetry = 20 * kMillisecond;
// The answer is sent this long before the first rank's deadline, at most a tenth of the whole time.
constexpr Nanoseconds kAnswerMargin = 300 * kMillisecond;

}  // namespace

RendezvousHost::RendezvousHost(const BootstrapConfig& config, Reactor* reactor)
    : config_(config),
      reactor_(reactor),
      start_(Now()),
      listener_(reactor->context()),
      door_(MakeDoor()),
      seats_(config.nranks),
      patience_ends_(config.deadline) {}

RendezvousHost::~RendezvousHost() {
  CloseDoor();
  for (const auto& seat : seats_) {
    if (seat && seat->stream) seat->stream->Close();
  }
}

Status RendezvousHost::Run(BootstrapResult* result) {
  ANNULUS_RETURN_IF_ERROR(OpenListener());
  door_->Open(&listener_);
  while (seated_ < config_.nranks - 1 && Now() < DecideBy() && !GivesUp() && !exhausted_) {
    Deadline wake = DecideBy();
    for (const auto& visitor : visitors_) wake = std::min(wake, visitor->limit);
    reactor_->WaitUntil(wake);
    DropSlow();
  }
  if (exhausted_) {
    Refuse(failure_);  // Frees descriptors for those who wait at the door.
    RefuseLatecomers();
  }
  if (failure_.ok() && seated_ < config_.nranks - 1) failure_ = Missing();
  if (failure_.ok()) failure_ = GiveTables(result);
  CloseDoor();  // Before the answer: a rank that has it may connect for the next communicator.
  door_->LogSummary();
  if (failure_.ok()) return Begin(result);
  if (!exhausted_) Refuse(failure_);
  return failure_;
}

Status RendezvousHost::OpenListener() {
  std::vector<StreamEndpoint> endpoints;
  for (;;) {
    const Status status = Resolve(config_.rendezvous, config_.deadline, &endpoints);
    if (status.ok()) break;
    if (status.code() != Code::kSystem || Now() + kListenRetry >= config_.deadline) return status;
    if (GivesUp()) return failure_;
    reactor_->WaitUntil(Now() + kListenRetry);
  }
  if (UseReserved(endpoints)) return Status();
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

// Takes a copy of the listener that has reserved the port, if there is one and it listens there.
bool RendezvousHost::UseReserved(const std::vector<StreamEndpoint>& endpoints) {
  int listens = 0;
  socklen_t bytes = sizeof listens;
  if (config_.listener < 0) return false;
  if (::getsockopt(config_.listener, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) return false;
  StreamEndpoint own;
  bytes = static_cast<socklen_t>(own.capacity());
  if (::getsockname(config_.listener, own.data(), &bytes) != 0) return false;
  own.resize(bytes);
  const bool fits = std::ranges::any_of(endpoints, [&](const StreamEndpoint& endpoint) {
    return PortOf(own) == PortOf(endpoint) && (IsUnspecified(own) || HostText(own) == HostText(endpoint));
  });
  if (!fits) return false;
  const int copy = ::fcntl(config_.listener, F_DUPFD_CLOEXEC, 0);
  asio::error_code error;
  if (copy >= 0) listener_.assign(StreamProtocol(own.data()->sa_family, 0), copy, error);
  if (copy >= 0 && error) ::close(copy);
  if (!listener_.is_open()) return false;
  CloseInForkedChildren(copy);
  listener_.non_blocking(true, error);
  listens_everywhere_ = IsUnspecified(own) && !IsUnspecified(endpoints.front());
  return !error;
}

// Listens on the rendezvous's own address, so that nothing else is exposed. Listens on all addresses if that one does
// not belong to this host but, for example, to a forwarder; and where others know its name by another address.
Status RendezvousHost::TryListen(const std::vector<StreamEndpoint>& endpoints) {
  Status status;
  const bool is_own_name = IsOwnName(config_.rendezvous, endpoints);
  for (const StreamEndpoint& endpoint : endpoints) {
    if (is_own_name) break;
    status = Listen(reactor_, endpoint, nullptr, &listener_);
    if (status.ok()) return status;
    if (status.os_errno() != EADDRNOTAVAIL && status.os_errno() != EAFNOSUPPORT) return status;
  }
  std::string host;
  int port = 0;
  if (!ParseAddress(config_.rendezvous, &host, &port)) return status;
  for (const char* all : {"::", "0.0.0.0"}) {
    StreamEndpoint endpoint;
    ANNULUS_RETURN_IF_ERROR(MakeEndpoint(all, port, &endpoint));
    status = Listen(reactor_, endpoint, nullptr, &listener_);
    listens_everywhere_ = status.ok() && !is_own_name;
    if (status.ok() || status.os_errno() == EADDRINUSE) return status;
  }
  return status;
}

std::shared_ptr<Door> RendezvousHost::MakeDoor() {
  Door::Plan plan;
  plan.hello = RendezvousHello(config_);
  plan.key = config_.job_key;
  plan.expected = static_cast<size_t>(config_.nranks);
  plan.limit = kVisitorLimit;
  plan.decide = [](const Hello&) { return StreamHandshake::Verdict::kWelcome; };
  // The door is closed before this object is gone.
  plan.on_proven = [this](const Door::Proven& proven) { HandleProven(proven); };
  plan.on_unlike = [this](const Status& status) { HandleUnlike(status); };
  plan.on_exhausted = [this](const Status& status) { HandleExhausted(status); };
  return std::make_shared<Door>(&reactor_->context(), std::move(plan));
}

void RendezvousHost::HandleProven(const Door::Proven& proven) {
  Visitor* const visitor = visitors_.emplace_back(std::make_unique<Visitor>()).get();
  visitor->from = proven.from;
  visitor->limit = proven.limit;
  const Hello& peer = proven.handshake->peer();
  visitor->rank = static_cast<int>(std::min<uint32_t>(peer.rank, std::numeric_limits<int>::max()));
  visitor->library.version = peer.library_version;
  visitor->library.build = peer.library_build;
  SealedFd connection = proven.handshake->TakeSocket().Release();
  if (connection.fd < 0) return Drop(visitor, Strays::kLeft, "its socket cannot be kept");
  visitor->ends = ControlConnections::EndsOf(connection.fd);
  visitor->ends.fd = -1;
  const Status created =
      ControlStream::Create(&reactor_->context(), std::move(connection), kMostJoinBytes, &visitor->stream);
  if (!created.ok()) return Drop(visitor, Strays::kLeft, created.message());
  visitor->stream->Start(
      {[this, visitor](MessageType type, std::span<const std::byte> body) { OnMessage(visitor, type, body); },
       [this, visitor](const Status& cause) { HandleClosed(visitor, cause); }});
}

// It has the same reason from its own end of the handshake; all others are told soon, as in Seat.
void RendezvousHost::HandleUnlike(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  patience_ends_ = std::min(patience_ends_, Now() + kLatecomerGrace);
}

void RendezvousHost::HandleExhausted(const Status& status) {
  if (!visitors_.empty() || !failure_.ok()) return;  // One of them may go.
  failure_ = Status(status.code(), status.message() + "; " + RankList(MissingRanks()) + " cannot get in", config_.rank,
                    status.os_errno());
  exhausted_ = true;
}

void RendezvousHost::OnMessage(Visitor* visitor, MessageType type, std::span<const std::byte> body) {
  JoinMessage join;
  if (visitor->seated && table_ && type == MessageType::kTaken && body.empty()) {
    visitor->taken = true;
    return visitor->stream->StopReading();  // Later messages are for the control thread.
  }
  if (visitor->seated || type != MessageType::kJoin || !Decode(body, &join)) {
    visitor->stream->Close();
    return HandleClosed(visitor, Status(Code::kProtocol, "a message that has no place in a rendezvous"));
  }
  Seat(visitor, join);
}

// An authenticated rank that contradicts the others ends the bootstrap soon: waiting cannot help, but all ranks should
// learn of it.
void RendezvousHost::Seat(Visitor* visitor, const JoinMessage& join) {
  const int rank = visitor->rank;
  if (refusal_) {
    visitor->stream->Send(refusal_);
    return visitor->stream->Finish();
  }
  visitor->library.file = join.library_file;
  const std::string contradiction = Contradiction(*visitor, join);
  if (!contradiction.empty()) {
    if (failure_.ok()) failure_ = Status(Code::kMismatch, contradiction, rank, 0);
    visitor->limit = kNoDeadline;  // It waits for the answer.
    patience_ends_ = std::min(patience_ends_, Now() + kLatecomerGrace);
    return;
  }
  if (visitor->library.build != config_.library.build) {
    Log(LogLevel::kInfo, config_.rank, "rank %d has another build of Annulus: %s", rank,
        LibraryText(visitor->library).c_str());
  }
  visitor->blob = join.blob;
  visitor->process = join.process;
  visitor->seated = true;
  visitor->patience_ends = DeadlineAfter(join.patience);
  if (seats_[rank] && seats_[rank]->stream) seats_[rank]->stream->Abandon();  // Its connection broke.
  if (!seats_[rank]) ++seated_;
  seats_[rank] = Remove(visitor);
  if (table_) visitor->stream->Send(table_);
}

// "" when the rank may be seated.
std::string RendezvousHost::Contradiction(const Visitor& visitor, const JoinMessage& join) const {
  const std::string name = RankList({visitor.rank});
  if (!WorkTogether(visitor.library.version, config_.library.version)) {
    return name + " (" + visitor.from + ") has Annulus " + LibraryText(visitor.library) + ", rank 0 has Annulus " +
           LibraryText(config_.library) + "; all ranks need the same minor version";
  }
  if (join.nranks != static_cast<uint32_t>(config_.nranks)) {
    return name + " (" + visitor.from + ") was started for " + std::to_string(join.nranks) + " ranks, rank 0 for " +
           std::to_string(config_.nranks);
  }
  if (visitor.rank >= config_.nranks) {
    return "a process at " + visitor.from + " claims " + name + " of " + std::to_string(config_.nranks);
  }
  if (!seats_[visitor.rank] || seats_[visitor.rank]->process == join.process) return "";
  return "two processes claim " + name + " (" + seats_[visitor.rank]->from + " and " + visitor.from + ")";
}

void RendezvousHost::HandleClosed(Visitor* visitor, const Status& cause) {
  if (refusal_) return;  // They have read the reason.
  const std::string why = cause.ok() ? "it closed the connection" : cause.message();
  if (!visitor->seated) return Drop(visitor, cause.code() == Code::kProtocol ? Strays::kNoHello : Strays::kLeft, why);
  Log(LogLevel::kWarn, config_.rank, "rank %d (%s) left the rendezvous again: %s", visitor->rank, visitor->from.c_str(),
      why.c_str());
  if (table_) {  // It may have its table, and come to the control door.
    visitor->lost_at = Now();
    visitor->ended = cause.ok() && !visitor->stream->was_reset();
    return;
  }
  --seated_;
  seats_[visitor->rank].reset();
}

void RendezvousHost::Drop(Visitor* visitor, Strays::Reason reason, const std::string& detail) {
  door_->Note(reason, visitor->from, detail);
  const std::unique_ptr<Visitor> dropped = Remove(visitor);
  if (dropped->stream) dropped->stream->Close();
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
  Deadline first = patience_ends_;
  for (const auto& seat : seats_) {
    if (seat) first = std::min(first, seat->patience_ends);
  }
  return first - std::min(kAnswerMargin, (first - start_) / 10);
}

bool RendezvousHost::GivesUp() {
  if (!config_.give_up || !failure_.ok()) return false;  // A contradiction already ends this.
  failure_ = config_.give_up();
  return !failure_.ok();
}

void RendezvousHost::CloseDoor() {
  door_->Close();
  asio::error_code ignored;
  listener_.close(ignored);
  for (const auto& visitor : visitors_) {
    // A rank that joined and contradicted others is told the reason.
    if (visitor->stream && failure_.ok()) visitor->stream->Close();
  }
}

std::vector<int> RendezvousHost::MissingRanks() const {
  std::vector<int> missing;
  for (int rank = 1; rank < config_.nranks; ++rank) {
    if (!seats_[rank]) missing.push_back(rank);
  }
  return missing;
}

Status RendezvousHost::Missing() const {
  const std::vector<int> missing = MissingRanks();
  std::string text =
      RankList(missing) + " did not arrive within " + SecondsText(Now() - start_) + " at " + config_.rendezvous;
  if (listens_everywhere_) {
    text += ", which is not an address of rank 0's host: unless it leads there, ANNULUS_RENDEZVOUS is wrong";
  }
  const std::string& dropped = door_->last_dropped();
  if (!dropped.empty()) text += " (connections were dropped, the last from " + dropped + ")";
  return Status(Code::kTimeout, text, missing.front(), 0);
}

}  // namespace annulus
