#include "collectives/control/sockets/control_door.h"

#include <sys/socket.h>
#include <unistd.h>

#include <asio/ip/v6_only.hpp>
#include <cerrno>
#include <system_error>
#include <utility>

namespace annulus {
namespace {

// Time that a connection has for its proof.
constexpr Nanoseconds kVisitLimit = 3 * kSecond;

Status ListenAt(const StreamEndpoint& endpoint, StreamListener* listener) {
  asio::error_code error(OpenSocket(endpoint.protocol().family(), listener), asio::system_category());
  // Ranks may come by IPv4, whatever the system's default is.
  if (!error && endpoint.data()->sa_family == AF_INET6) listener->set_option(asio::ip::v6_only(false), error);
  if (!error) listener->bind(endpoint, error);
  if (!error) listener->listen(asio::socket_base::max_listen_connections, error);
  return error ? Status::System("listening at " + EndpointText(endpoint), error.value()) : Status();
}

}  // namespace

Hello ControlHello(const Identity& identity, int rank, int nranks, bool encrypts) {
  Hello hello;
  hello.purpose = {4, "control"};
  hello.identity = identity;
  hello.nranks = static_cast<uint32_t>(nranks);
  hello.rank = static_cast<uint32_t>(rank);
  hello.encrypts = encrypts;
  return hello;
}

ControlDoor::ControlDoor(asio::io_context* context, const std::string& key, const Hello& hello, Expects expects,
                         Returned returned)
    : listener_(*context) {
  Door::Plan plan;
  plan.hello = hello;
  plan.key = key;
  plan.expected = hello.nranks;
  plan.limit = kVisitLimit;
  plan.keeps_spare = true;
  plan.decide = [nranks = hello.nranks, expects = std::move(expects)](const Hello& peer) {
    const bool expected = peer.rank < nranks && expects(static_cast<int>(peer.rank));
    return expected ? StreamHandshake::Verdict::kWelcome : StreamHandshake::Verdict::kUnexpected;
  };
  plan.on_proven = [returned = std::move(returned)](const Door::Proven& proven) {
    SealedFd connection = proven.handshake->TakeSocket().Release();
    if (connection.fd >= 0) returned(static_cast<int>(proven.handshake->peer().rank), std::move(connection));
  };
  door_ = std::make_shared<Door>(context, std::move(plan));
}

Status ControlDoor::Open(int listener) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  asio::error_code error;
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes) != 0)
    error.assign(errno, asio::system_category());
  if (!error) listener_.assign(StreamProtocol(address.ss_family, 0), listener, error);
  if (error) ::close(listener);
  if (!error) listener_.non_blocking(true, error);
  if (error) return Status::System("taking over the control door", error.value());
  door_->Open(&listener_);
  return Status();
}

void ControlDoor::Close() {
  door_->Close();
  asio::error_code ignored;
  listener_.close(ignored);
}

Status ListenForReturns(const std::string& host, int* listener, int* port) {
  StreamEndpoint endpoint;
  ANNULUS_RETURN_IF_ERROR(MakeEndpoint(host, 0, &endpoint));
  try {
    asio::io_context context;
    StreamListener made(context);
    ANNULUS_RETURN_IF_ERROR(ListenAt(endpoint, &made));
    *port = PortOf(made.local_endpoint());
    asio::error_code error;
    *listener = made.release(error);
    return error ? Status::System("keeping the control door", error.value()) : Status();
  } catch (const std::system_error& error) {  // The io_context found no file descriptors.
    return Status::System("making the control door", error.code().value());
  }
}

}  // namespace annulus
