#include "transport/security/connector.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/error.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "transport/security/door.h"
#include "transport/security/stream_handshake.h"

namespace annulus {
namespace {

// A refused dial is repeated after this time, which doubles up to the limit: quick when a peer is just starting, little
// load when a thousand ranks wait for rank 0.
constexpr Nanoseconds kFirstRetry = 2 * kMillisecond;
constexpr Nanoseconds kLongestRetry = 200 * kMillisecond;
constexpr char kNobodyThere[] = "nothing answers at this address";
// Largest number of missing ranks that one error message names.
constexpr int kMaxNamed = 8;

using Role = Handshake::Role;
using Verdict = StreamHandshake::Verdict;

bool IsPermanent(const asio::error_code& error) {
  return error == asio::error::address_family_not_supported || error == asio::error::invalid_argument ||
         error == asio::error::access_denied || error == asio::error::no_permission;
}

// Held by shared_ptr: handlers that still wait in the io_context keep it alive, and find finished_ set.
class Connector : public std::enable_shared_from_this<Connector> {
 public:
  Connector(Reactor* reactor, const ConnectPlan& plan) : reactor_(reactor), plan_(plan), door_(MakeDoor()) {}

  Status Run(std::vector<Stream>* streams);

 private:
  struct Dial {
    Dial(const DialRequest* wanted, asio::io_context& context) : request(wanted), socket(context), timer(context) {}
    const DialRequest* request;
    StreamSocket socket;
    asio::steady_timer timer;
    std::shared_ptr<StreamHandshake> handshake;
    size_t attempts = 0;
    Nanoseconds delay = kFirstRetry;
    std::string last_error = kNobodyThere;
    std::optional<Stream> stream;
  };

  void StartDial(Dial* dial);
  bool OpenDial(Dial* dial, const StreamEndpoint& to);
  void OnDialled(Dial* dial);
  void OnDialHandshake(Dial* dial, Status status);
  void RetryDial(Dial* dial, const std::string& why);

  std::shared_ptr<Door> MakeDoor();
  Verdict Decide(const Hello& peer) const;
  void OnProven(Door::Proven proven);

  void Fail(Status status);
  bool done() const { return missing_ == 0 || !failure_.ok(); }
  Status Missing() const;
  void Finish();

  Reactor* const reactor_;
  const ConnectPlan& plan_;  // Not used once finished_.
  const std::shared_ptr<Door> door_;
  std::list<Dial> dials_;
  std::map<StreamId, std::optional<Stream>> accepted_;
  size_t missing_ = 0;
  Status failure_;
  bool finished_ = false;
};

Status Connector::Run(std::vector<Stream>* streams) {
  for (const StreamId& id : plan_.expected) accepted_[id];
  ANNULUS_CHECK(accepted_.size() == plan_.expected.size() && (plan_.expected.empty() || plan_.listener));
  missing_ = plan_.dials.size() + plan_.expected.size();
  if (!plan_.expected.empty()) door_->Open(plan_.listener);
  for (const DialRequest& request : plan_.dials) {
    ANNULUS_CHECK(!request.endpoints.empty());
    StartDial(&dials_.emplace_back(&request, reactor_->context()));
  }
  while (!done() && Now() < plan_.deadline) {
    reactor_->WaitUntil(plan_.deadline);
    if (plan_.give_up && !done()) failure_ = plan_.give_up();
  }
  if (!done()) failure_ = Missing();
  Finish();
  if (!failure_.ok()) return failure_;
  std::vector<Stream> made;
  for (Dial& dial : dials_) made.push_back(std::move(*dial.stream));
  for (const StreamId& id : plan_.expected) made.push_back(std::move(*accepted_[id]));
  *streams = std::move(made);
  return Status();
}

void Connector::StartDial(Dial* dial) {
  const StreamEndpoint& to = dial->request->endpoints[dial->attempts++ % dial->request->endpoints.size()];
  if (!OpenDial(dial, to)) return;
  if (plan_.dial_limit > 0) {
    dial->timer.expires_after(std::chrono::nanoseconds(plan_.dial_limit));
    dial->timer.async_wait([self = shared_from_this(), dial](const asio::error_code& error) {
      asio::error_code ignored;
      if (!error && !self->finished_) dial->socket.close(ignored);
    });
  }
  dial->socket.async_connect(to, [self = shared_from_this(), dial, to](const asio::error_code& error) {
    if (self->finished_) return;
    dial->timer.cancel();
    if (!error) return self->OnDialled(dial);
    if (error == asio::error::operation_aborted) return self->RetryDial(dial, kNobodyThere);
    if (IsPermanent(error)) {
      return self->Fail({Code::kSystem,
                         "cannot connect to rank " + std::to_string(dial->request->id.rank) + " at " +
                             EndpointText(to) + ": " + error.message(),
                         static_cast<int>(dial->request->id.rank), error.value()});
    }
    self->RetryDial(dial, kNobodyThere + (": " + error.message()));
  });
}

bool Connector::OpenDial(Dial* dial, const StreamEndpoint& to) {
  asio::error_code error;
  dial->socket = StreamSocket(reactor_->context());
  const int cause = OpenSocket(to.data()->sa_family, &dial->socket);
  if (cause != 0) {
    const std::string what = "a socket to dial rank " + std::to_string(dial->request->id.rank);
    Fail(IsOutOfDescriptors(cause) ? OutOfDescriptors(static_cast<int>(plan_.hello.rank), what, cause)
                                   : Status::System("cannot open " + what + " at " + EndpointText(to), cause));
    return false;
  }
  if (to.data()->sa_family != AF_UNIX) ProbePath(dial->socket.native_handle());
  if (plan_.configure) plan_.configure(dial->socket.native_handle());
  if (!HasAddress(plan_.source) || plan_.source.data()->sa_family != to.data()->sa_family) return true;
  // The port is chosen at connect, by all four parts of the connection: this allows many more connections than choosing
  // it at bind.
  using NoPort = asio::detail::socket_option::boolean<IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT>;
  asio::error_code ignored;
  dial->socket.set_option(NoPort(true), ignored);
  dial->socket.bind(plan_.source, error);
  if (!error) return true;
  Fail(Status::System("cannot dial from " + HostText(plan_.source), error.value()));
  return false;
}

void Connector::OnDialled(Dial* dial) {
  // Dialling a port of this host that nobody listens on can connect a socket to itself, by TCP's simultaneous open.
  asio::error_code error;
  if (dial->socket.local_endpoint(error) == dial->socket.remote_endpoint(error)) return RetryDial(dial, kNobodyThere);
  Hello hello = plan_.hello;
  hello.target_rank = dial->request->id.rank;
  hello.channel = dial->request->id.channel;
  hello.lane = dial->request->id.lane;
  dial->last_error = "connected, but no answer";
  dial->handshake = std::make_shared<StreamHandshake>(std::move(dial->socket), Role::kInitiator, plan_.key, hello);
  const std::shared_ptr<StreamHandshake> handshake = dial->handshake;  // It may finish, and be released, inside Start.
  handshake->Start(nullptr, [self = shared_from_this(), dial](Status status) {
    if (!self->finished_) self->OnDialHandshake(dial, std::move(status));
  });
}

void Connector::OnDialHandshake(Dial* dial, Status status) {
  const std::shared_ptr<StreamHandshake> handshake = std::move(dial->handshake);
  // Whoever says something else, or is about to go, may be in the place of the peer for a while.
  const Handshake::Refused refused = handshake->refused();
  const bool may_change = refused == Handshake::Refused::kStranger || refused == Handshake::Refused::kEarlierRun;
  if (status.code() == Code::kPeerLost || may_change) return RetryDial(dial, status.message());
  if (!status.ok()) {
    const int rank = static_cast<int>(dial->request->id.rank);
    const size_t used = (dial->attempts - 1) % dial->request->endpoints.size();
    return Fail({status.code(),
                 "connecting to rank " + std::to_string(rank) + " at " + EndpointText(dial->request->endpoints[used]) +
                     ": " + status.message(),
                 rank, status.os_errno()});
  }
  SealedSocket made = handshake->TakeSocket();
  dial->stream.emplace(
      Stream{dial->request->id, handshake->session_minor(), std::move(made.socket), std::move(made.seal)});
  --missing_;
}

void Connector::RetryDial(Dial* dial, const std::string& why) {
  dial->last_error = why;
  asio::error_code ignored;
  dial->socket.close(ignored);
  dial->timer.expires_after(std::chrono::nanoseconds(dial->delay));
  dial->delay = std::min(2 * dial->delay, kLongestRetry);
  dial->timer.async_wait([self = shared_from_this(), dial](const asio::error_code& error) {
    if (!error && !self->finished_) self->StartDial(dial);
  });
}

std::shared_ptr<Door> Connector::MakeDoor() {
  Door::Plan plan;
  plan.hello = plan_.hello;
  plan.key = plan_.key;
  plan.expected = plan_.expected.size();
  plan.limit = plan_.stranger_limit;
  // The door is closed before this object is gone.
  plan.decide = [this](const Hello& peer) { return Decide(peer); };
  plan.on_proven = [this](Door::Proven proven) { OnProven(std::move(proven)); };
  plan.on_exhausted = [this](const Status& status) { Fail(status); };
  return std::make_shared<Door>(&reactor_->context(), std::move(plan));
}

Verdict Connector::Decide(const Hello& peer) const {
  const auto found = accepted_.find({peer.rank, peer.channel, peer.lane});
  if (found == accepted_.end() || peer.connection != 0) return Verdict::kUnexpected;
  return found->second ? Verdict::kDuplicate : Verdict::kWelcome;
}

void Connector::OnProven(Door::Proven proven) {
  const Hello& peer = proven.handshake->peer();
  const StreamId id{peer.rank, peer.channel, peer.lane};
  SealedSocket made = proven.handshake->TakeSocket();
  accepted_[id].emplace(Stream{id, proven.handshake->session_minor(), std::move(made.socket), std::move(made.seal)});
  --missing_;
}

void Connector::Fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
}

Status Connector::Missing() const {
  std::string text;
  int named = 0;
  int first = Status::kNoRank;
  auto name = [&](const StreamId& id, const std::string& how) {
    if (first == Status::kNoRank) first = static_cast<int>(id.rank);
    if (++named > kMaxNamed) return;
    text += (text.empty() ? "" : "; ") + ("rank " + std::to_string(id.rank)) + " " + how;
  };
  for (const Dial& dial : dials_) {
    if (!dial.stream) {
      name(dial.request->id, "at " + EndpointText(dial.request->endpoints[0]) + ": " + dial.last_error);
    }
  }
  std::optional<uint32_t> last;
  for (const auto& [id, stream] : accepted_) {
    if (!stream && last != id.rank) name(id, "has not connected");
    if (!stream) last = id.rank;
  }
  if (named > kMaxNamed) text += "; and " + std::to_string(named - kMaxNamed) + " more";
  return {Code::kTimeout, "timed out while connecting: " + text, first, 0};
}

// Closes what is unfinished and runs the handlers that this cancels, so that nothing stays behind in the reactor.
void Connector::Finish() {
  finished_ = true;
  door_->LogSummary();
  door_->Close();
  asio::error_code ignored;
  for (Dial& dial : dials_) {
    if (dial.handshake) dial.handshake->Cancel();
    dial.timer.cancel();
    dial.socket.close(ignored);
  }
  if (!failure_.ok()) {
    for (Dial& dial : dials_) dial.stream.reset();
    for (auto& [id, stream] : accepted_) stream.reset();
  }
  reactor_->WaitUntil(Now());
}

}  // namespace

void ProbePath(int fd) {
  const auto set = [fd](int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 2);
}

Status EstablishStreams(Reactor* reactor, const ConnectPlan& plan, std::vector<Stream>* streams) {
  return std::make_shared<Connector>(reactor, plan)->Run(streams);
}

}  // namespace annulus
