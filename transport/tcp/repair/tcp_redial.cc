#include "transport/tcp/repair/tcp_redial.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "transport/security/connector.h"

namespace annulus {
namespace {

// An attempt that the peer's kernel does not answer is given up after this time, or a few round trips: the kernel would
// send its packet again after 1, 3 and 7 s only, however early the path is back.
constexpr Nanoseconds kAttempt = 250 * kMillisecond;
constexpr Nanoseconds kRoundTrips = 4;
// So many times as long is every fourth attempt, for a path that has become slow.
constexpr Nanoseconds kPatience = 4;
// The few bytes that are said before the connection is in use are acknowledged by the peer's kernel, whatever its rank
// does, or the path has been lost again.
constexpr Nanoseconds kAnswer = 3 * kSecond;
// A failed attempt is repeated after this time, which doubles up to the limit.
constexpr Nanoseconds kFirstRetry = 2 * kMillisecond;
constexpr Nanoseconds kLongestRetry = 100 * kMillisecond;

}  // namespace

Nanoseconds AttemptTime(uint32_t number, Nanoseconds round_trip) {
  const Nanoseconds usual = std::max(kAttempt, kRoundTrips * round_trip);
  return number % 4 == 0 ? kPatience * usual : usual;
}

TcpRedial::TcpRedial(asio::io_context* context, Plan plan)
    : context_(context), plan_(std::move(plan)), socket_(*context), timer_(*context), delay_(kFirstRetry) {}

Status TcpRedial::Open() {
  socket_ = StreamSocket(*context_);
  const int family = plan_.target.protocol().family();
  if (const int cause = OpenSocket(family, &socket_); cause != 0) return Status::System("cannot open a socket", cause);
  ProbePath(socket_.native_handle());
  const int answer_ms = kAnswer / kMillisecond;
  setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &answer_ms, sizeof answer_ms);
  if (!HasAddress(plan_.source) || plan_.source.protocol().family() != family) return Status();
  using NoPort = asio::detail::socket_option::boolean<IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT>;
  asio::error_code error;
  socket_.set_option(NoPort(true), error);
  socket_.bind(plan_.source, error);
  return error ? Status::System("cannot dial from " + HostText(plan_.source), error.value()) : Status();
}

void TcpRedial::Start() {
  if (ended_) return;
  ++plan_.hello.connection;
  if (!Open().ok()) return Retry();  // Descriptors and addresses may come back.
  timer_.expires_after(std::chrono::nanoseconds(AttemptTime(connection(), plan_.round_trip)));
  timer_.async_wait([self = shared_from_this(), attempt = connection()](const asio::error_code& ended) {
    asio::error_code ignored;
    if (!ended && attempt == self->connection() && self->handshake_ == nullptr) self->socket_.close(ignored);
  });
  socket_.async_connect(plan_.target, [self = shared_from_this()](const asio::error_code& error) {
    if (self->ended_) return;
    error ? self->Retry() : self->Prove();
  });
}

void TcpRedial::Prove() {
  timer_.cancel();
  // A port of this host that nobody listens on can connect a socket to itself.
  asio::error_code error;
  if (socket_.local_endpoint(error) == socket_.remote_endpoint(error)) return Retry();
  plan_.on_asking();
  handshake_ =
      std::make_shared<StreamHandshake>(std::move(socket_), Handshake::Role::kInitiator, plan_.key, plan_.hello);
  const std::shared_ptr<StreamHandshake> handshake = handshake_;  // It may finish, and be released, inside Start.
  handshake->Start(nullptr, [self = shared_from_this()](const Status& status) { self->OnHandshake(status); });
}

// Who refuses may be about to fail, and control will say so; or it was somebody else in the peer's place.
void TcpRedial::OnHandshake(const Status& status) {
  if (ended_) return;
  const std::shared_ptr<StreamHandshake> handshake = std::exchange(handshake_, nullptr);
  is_turned_away_ = handshake->proven() && status.code() == Code::kProtocol;
  if (!status.ok()) return Retry();
  ended_ = true;
  std::exchange(plan_.on_connected, nullptr)(handshake->TakeSocket());
}

void TcpRedial::Retry() {
  asio::error_code ignored;
  socket_.close(ignored);
  timer_.expires_after(std::chrono::nanoseconds(delay_));
  delay_ = std::min(2 * delay_, kLongestRetry);
  timer_.async_wait([self = shared_from_this()](const asio::error_code& ended) {
    if (!ended) self->Start();
  });
}

void TcpRedial::Cancel() {
  ended_ = true;
  plan_.on_connected = nullptr;
  plan_.on_asking = nullptr;
  timer_.cancel();
  asio::error_code ignored;
  socket_.close(ignored);
  if (handshake_ != nullptr) std::exchange(handshake_, nullptr)->Cancel();
}

}  // namespace annulus
