#include "collectives/control/control_door.h"

#include <utility>

namespace annulus {
namespace {

// Time that a connection has for its proof.
constexpr Nanoseconds kVisitLimit = 3 * kSecond;

Status ListenAt(const StreamEndpoint& endpoint, StreamListener* listener) {
  asio::error_code error(OpenSocket(endpoint.protocol().family(), listener), asio::system_category());
  if (!error) listener->bind(endpoint, error);
  if (!error) listener->listen(asio::socket_base::max_listen_connections, error);
  return error ? Status::System("listening at " + EndpointText(endpoint), error.value()) : Status();
}

}  // namespace

ControlDoor::ControlDoor(asio::io_context* context, const std::string& key, const Hello& hello, Expects expects,
                         Returned returned)
    : listener_(*context) {
  Door::Plan plan;
  plan.hello = hello;
  plan.key = key;
  plan.expected = hello.nranks;
  plan.limit = kVisitLimit;
  plan.decide = [nranks = hello.nranks, expects = std::move(expects)](const Hello& peer) {
    const bool expected = peer.rank < nranks && expects(static_cast<int>(peer.rank));
    return expected ? StreamHandshake::Verdict::kWelcome : StreamHandshake::Verdict::kUnexpected;
  };
  plan.on_proven = [returned = std::move(returned)](const Door::Proven& proven) {
    asio::error_code error;
    const int fd = proven.handshake->TakeSocket().release(error);
    if (!error) returned(static_cast<int>(proven.handshake->peer().rank), fd);
  };
  door_ = std::make_shared<Door>(context, std::move(plan));
}

Status ControlDoor::Open(const StreamEndpoint& local) {
  StreamEndpoint endpoint;
  ANNULUS_RETURN_IF_ERROR(MakeEndpoint(HostText(local), 0, &endpoint));
  ANNULUS_RETURN_IF_ERROR(ListenAt(endpoint, &listener_));
  port_ = PortOf(listener_.local_endpoint());
  door_->Open(&listener_);
  return Status();
}

void ControlDoor::Close() {
  door_->Close();
  asio::error_code ignored;
  listener_.close(ignored);
}

}  // namespace annulus
