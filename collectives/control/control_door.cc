#include "collectives/control/control_door.h"

#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace annulus {
namespace {

constexpr size_t kMostVisitors = 16;
constexpr Nanoseconds kVisitLimit = 2 * kSecond;
constexpr Nanoseconds kSweepInterval = 500 * kMillisecond;

Status ListenAt(const StreamEndpoint& endpoint, StreamListener* listener) {
  asio::error_code error(OpenSocket(endpoint.protocol().family(), listener), asio::system_category());
  if (!error) listener->bind(endpoint, error);
  if (!error) listener->listen(asio::socket_base::max_listen_connections, error);
  return error ? Status::System("listening at " + EndpointText(endpoint), error.value()) : Status();
}

}  // namespace

ControlDoor::ControlDoor(asio::io_context* context, const std::string& key, const Hello& hello, Expects expects,
                         Returned returned)
    : key_(key),
      hello_(hello),
      expects_(std::move(expects)),
      returned_(std::move(returned)),
      listener_(*context),
      timer_(*context) {}

Status ControlDoor::Open(const StreamEndpoint& local) {
  StreamEndpoint endpoint;
  ANNULUS_RETURN_IF_ERROR(MakeEndpoint(HostText(local), 0, &endpoint));
  ANNULUS_RETURN_IF_ERROR(ListenAt(endpoint, &listener_));
  port_ = PortOf(listener_.local_endpoint());
  Accept();
  return Status();
}

void ControlDoor::Close() {
  asio::error_code ignored;
  listener_.close(ignored);
  timer_.cancel();
  for (const Visitor& visitor : std::exchange(visitors_, {})) visitor.handshake->Cancel();
}

void ControlDoor::Accept() {
  listener_.async_accept([this](const asio::error_code& error, StreamSocket socket) {
    if (!listener_.is_open()) return;
    if (!error) {
      Receive(std::move(socket));
      return Accept();
    }
    // Perhaps out of descriptors: try again later, and not at once.
    timer_.expires_after(std::chrono::nanoseconds(kSweepInterval));
    timer_.async_wait([this](const asio::error_code& ended) {
      if (ended) return;
      Sweep();
      Accept();
    });
  });
}

void ControlDoor::Receive(StreamSocket socket) {
  ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
  if (visitors_.size() == kMostVisitors) {
    visitors_.front().handshake->Cancel();
    visitors_.pop_front();
  }
  auto handshake = std::make_shared<StreamHandshake>(std::move(socket), Handshake::Role::kAcceptor, key_, hello_);
  visitors_.push_back({handshake, DeadlineAfter(kVisitLimit)});
  if (visitors_.size() == 1) Sweep();
  const auto decide = [this](const Hello& peer) {
    const bool expected = peer.rank < hello_.nranks && expects_(static_cast<int>(peer.rank));
    return expected ? StreamHandshake::Verdict::kWelcome : StreamHandshake::Verdict::kUnexpected;
  };
  handshake->Start(decide, [this, weak = std::weak_ptr(handshake)](const Status& status) {
    if (const auto ended = weak.lock()) Finish(ended, status);
  });
}

void ControlDoor::Finish(const std::shared_ptr<StreamHandshake>& handshake, const Status& status) {
  Forget(handshake);
  if (!status.ok()) return;
  StreamSocket socket = handshake->TakeSocket();
  asio::error_code error;
  const int fd = socket.release(error);
  if (!error) returned_(static_cast<int>(handshake->peer().rank), fd);
}

void ControlDoor::Forget(const std::shared_ptr<StreamHandshake>& handshake) {
  std::erase_if(visitors_, [&](const Visitor& visitor) { return visitor.handshake == handshake; });
}

// Drops visitors that take too long, again and again while there are any.
void ControlDoor::Sweep() {
  while (!visitors_.empty() && Now() >= visitors_.front().deadline) {
    visitors_.front().handshake->Cancel();
    visitors_.pop_front();
  }
  if (visitors_.empty()) return;
  timer_.expires_after(std::chrono::nanoseconds(kSweepInterval));
  timer_.async_wait([this](const asio::error_code& ended) {
    if (!ended) Sweep();
  });
}

}  // namespace annulus
