// The side of every rank except 0 (RendezvousHost is rank 0's side): connect, authenticate, join, and wait for the
// table.
#include "collectives/membership/bootstrap.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/launchers.h"
#include "base/log.h"
#include "collectives/control/sockets/control_stream.h"
#include "collectives/control/verdict.h"
#include "collectives/membership/bootstrap_host.h"
#include "collectives/membership/bootstrap_messages.h"
#include "transport/pulse.h"
#include "transport/security/connector.h"
#include "transport/security/door.h"

namespace annulus {
namespace {

// Longest time of one attempt to connect. Then the next address is tried, because the first may lead nowhere.
constexpr Nanoseconds kDialLimit = 5 * kSecond;
// Time after which a name is looked up again.
constexpr Nanoseconds kLookupLimit = 5 * kSecond;
// Pause after rank 0 dropped us, or the name lookup failed.
constexpr Nanoseconds kPause = 100 * kMillisecond;

class RendezvousGuest {
 public:
  RendezvousGuest(const BootstrapConfig& config, Reactor* reactor)
      : config_(config), reactor_(reactor), start_(Now()) {}

  Status Run(BootstrapResult* result);

 private:
  enum class Outcome { kFinal, kRetry };

  // Sets status_, which is final when this returns kFinal.
  Outcome Attempt(BootstrapResult* result);
  bool Connect(SealedFd* connection);
  Outcome Join(SealedFd connection, BootstrapResult* result);
  // Whether config_.give_up failed; status_ is then its status.
  bool GivesUp();
  void OnAnswer(ControlStream* stream, MessageType type, std::span<const std::byte> body, BootstrapResult* result);

  const BootstrapConfig& config_;
  Reactor* const reactor_;
  const Nanoseconds start_;
  size_t attempts_ = 0;
  bool given_up_ = false;
  bool has_table_ = false;
  bool answered_ = false;  // For good.
  const uint64_t process_ = RandomNumber();
  Status status_;
};

Status RendezvousGuest::Run(BootstrapResult* result) {
  for (;;) {
    if (Attempt(result) == Outcome::kFinal) return status_;
    if (Now() >= config_.deadline) break;
    const Deadline pause_ends = std::min(config_.deadline, Now() + kPause);
    while (Now() < pause_ends) reactor_->WaitUntil(pause_ends);
    if (GivesUp()) return status_;
  }
  return Status(Code::kTimeout,
                "rank 0 did not arrive within " + SecondsText(Now() - start_) + " at " + config_.rendezvous + " (" +
                    status_.message() + ")",
                0, status_.os_errno());
}

bool RendezvousGuest::GivesUp() {
  Status why = config_.give_up ? config_.give_up() : Status();
  if (why.ok()) return false;
  given_up_ = true;
  status_ = std::move(why);
  return true;
}

RendezvousGuest::Outcome RendezvousGuest::Attempt(BootstrapResult* result) {
  SealedFd connection;
  if (Connect(&connection)) return Join(std::move(connection), result);
  constexpr Code kHopeless[] = {Code::kAuth, Code::kProtocol, Code::kMismatch, Code::kInvalidArgument};
  if (IsOutOfDescriptors(status_.os_errno())) return Outcome::kFinal;  // Waiting frees none.
  return std::ranges::count(kHopeless, status_.code()) > 0 ? Outcome::kFinal : Outcome::kRetry;
}

bool RendezvousGuest::Connect(SealedFd* connection) {
  ConnectPlan plan;
  plan.give_up = config_.give_up;
  plan.hello = RendezvousHello(config_);
  plan.key = config_.job_key;
  plan.dial_limit = kDialLimit;
  StreamEndpoint numeric;
  const bool is_name = !ParseEndpoint(config_.rendezvous, &numeric).ok();
  plan.deadline = is_name ? std::min(config_.deadline, DeadlineAfter(kLookupLimit)) : config_.deadline;
  DialRequest dial;
  status_ = Resolve(config_.rendezvous, plan.deadline, &dial.endpoints);
  if (!status_.ok()) return false;
  std::rotate(dial.endpoints.begin(), dial.endpoints.begin() + attempts_++ % dial.endpoints.size(),
              dial.endpoints.end());
  plan.dials.push_back(std::move(dial));
  std::vector<Stream> streams;
  status_ = EstablishStreams(reactor_, plan, &streams);
  if (!status_.ok()) return false;
  asio::error_code error;
  const int fd = streams[0].socket.release(error);
  if (error) status_ = Status::System("taking over the connection to rank 0", error.value());
  *connection = {fd, std::move(streams[0].seal)};
  return status_.ok();
}

RendezvousGuest::Outcome RendezvousGuest::Join(SealedFd connection, BootstrapResult* result) {
  const ControlConnection ends = ControlConnections::EndsOf(connection.fd);
  std::shared_ptr<ControlStream> stream;
  status_ = ControlStream::Create(&reactor_->context(), std::move(connection), MostTableBytes(config_.nranks), &stream);
  if (!status_.ok()) return Outcome::kFinal;
  result->local_host = LocalHostOf(ends.local);
  answered_ = has_table_ = false;
  bool lost = false;
  stream->Start({[&](MessageType type, std::span<const std::byte> body) {
                   OnAnswer(stream.get(), type, body, result);
                   if (answered_) stream->StopReading();  // Later messages are for the control thread.
                 },
                 [&](const Status& cause) {
                   lost = true;
                   status_ = Status(Code::kPeerLost, "rank 0 closed the connection", 0, cause.os_errno());
                 }});
  stream->Send(EncodeMessage(MessageType::kJoin, Encode(JoinMessage{static_cast<uint32_t>(config_.nranks), process_,
                                                                    std::max<Nanoseconds>(config_.deadline - Now(), 0),
                                                                    config_.library.file, config_.blob})));
  while (!answered_ && !lost && Now() < config_.deadline && !GivesUp()) reactor_->WaitUntil(config_.deadline);
  SealedFd kept = answered_ && status_.ok() ? stream->Release() : SealedFd();
  stream->Close();
  if (given_up_) return Outcome::kFinal;
  if (lost && !has_table_) return Outcome::kRetry;
  // With the table, the way back to rank 0 is its control door: the rendezvous may be closed already.
  if (lost) status_ = Status();
  if (lost || kept.fd >= 0) {
    result->connections.Put(0, {kept.fd, ends.local, ends.peer, false, std::move(kept.seal)});
  }
  if (!lost && !answered_) status_ = Status(Code::kTimeout, "rank 0 does not respond (stopped or unreachable)", 0, 0);
  return Outcome::kFinal;
}

void RendezvousGuest::OnAnswer(ControlStream* stream, MessageType type, std::span<const std::byte> body,
                               BootstrapResult* result) {
  answered_ = true;
  TableMessage table;
  ByteReader in(body);
  Status refusal;
  if (type == MessageType::kRefused && ReadStatus(&in, &refusal) && in.done()) {
    status_ = refusal;
  } else if (type == MessageType::kBegin && has_table_ && body.empty()) {
    status_ = Status();
  } else if (type == MessageType::kTable && !has_table_ && Decode(body, config_.nranks, &table)) {
    has_table_ = true;
    answered_ = false;
    result->job_id = table.job_id;
    result->blobs = std::move(table.blobs);
    result->connections.SetDoor({-1, table.door_port, std::move(table.ticket)});
    if (config_.met) config_.met();  // First: rank 0 may go on once it knows.
    stream->Send(EncodeMessage(MessageType::kTaken, ""));
  } else {
    status_ = Status(Code::kProtocol, "rank 0 sent a table of ranks that cannot be read", 0, 0);
  }
}

Status Check(const BootstrapConfig& config) {
  if (config.nranks < 1 || config.rank < 0 || config.rank >= config.nranks) {
    return Status::Invalid("rank " + std::to_string(config.rank) + " of " + std::to_string(config.nranks) +
                           " cannot be");
  }
  if (config.nranks > JobPlace::kMostRanks) {
    return Status::Invalid("a job of " + std::to_string(config.nranks) + " ranks cannot be: at most " +
                           std::to_string(JobPlace::kMostRanks));
  }
  if (config.blob.size() > kMostBlobBytes) return Status(Code::kInternal, "a bootstrap blob is too long");
  return Status();
}

}  // namespace

Status Bootstrap(const BootstrapConfig& config, BootstrapResult* result) {
  ANNULUS_RETURN_IF_ERROR(Check(config));
  BootstrapResult made;
  if (config.nranks == 1) {
    made.blobs.push_back(config.blob);
  } else {
    Reactor reactor;
    std::optional<Pulse> pulse;
    if (config.give_up) pulse.emplace(&reactor, kGiveUpCheck);
    if (config.rank == 0) {
      ANNULUS_RETURN_IF_ERROR(RendezvousHost(config, &reactor).Run(&made));
    } else {
      ANNULUS_RETURN_IF_ERROR(RendezvousGuest(config, &reactor).Run(&made));
    }
  }
  *result = std::move(made);
  return Status();
}

}  // namespace annulus
