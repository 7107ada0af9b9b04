#include "tests/faults/far_path.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/check.h"

namespace annulus {
namespace {

constexpr int kTickMs = 2;  // Between two looks at what is due.

sockaddr_in Ipv4(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  ANNULUS_CHECK(inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1);
  return address;
}

int NewSocket() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ANNULUS_CHECK(fd >= 0);
  return fd;
}

}  // namespace

FarPath::FarPath(int port, const std::string& from) : port_(port), from_(from), listener_(NewSocket()) {
  sockaddr_in own = Ipv4("127.0.0.1", 0);
  socklen_t bytes = sizeof own;
  ANNULUS_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&own), bytes) == 0 && listen(listener_, 64) == 0);
  ANNULUS_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&own), &bytes) == 0);
  own_port_ = ntohs(own.sin_port);
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

FarPath::~FarPath() {
  thread_.request_stop();
  thread_.join();
  for (const Connection& connection : connections_) {
    close(connection.near);
    close(connection.far);
  }
  close(listener_);
}

void FarPath::Run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    pollfd polled = {listener_, POLLIN, 0};
    if (poll(&polled, 1, kTickMs) == 1) Accept();
    for (Connection& connection : connections_) Move(&connection);
    connections_.remove_if([](const Connection& connection) { return connection.over; });
  }
}

void FarPath::Accept() {
  const int near = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  const int far = NewSocket();
  const sockaddr_in own = Ipv4(from_, 0);
  const sockaddr_in target = Ipv4("127.0.0.1", port_);
  const bool connected = near >= 0 && bind(far, reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0 &&
                         connect(far, reinterpret_cast<const sockaddr*>(&target), sizeof target) == 0;
  if (connected) {
    connections_.emplace_back(near, far);
  } else {
    close(far);
    if (near >= 0) close(near);
  }
}

void FarPath::Move(Connection* connection) {
  Receive(&connection->up);
  Receive(&connection->down);
  const bool up = Deliver(&connection->up);
  const bool down = Deliver(&connection->down);
  const bool all_ended = connection->up.ended && connection->down.ended && connection->up.pieces.empty() &&
                         connection->down.pieces.empty();
  connection->over = !up || !down || all_ended;
  if (!connection->over) return;
  close(connection->near);
  close(connection->far);
}

void FarPath::Receive(Way* way) {
  std::vector<char> buffer(16384);
  while (!way->ended) {
    const ssize_t got = recv(way->from, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    way->ended = got <= 0;
    way->pieces.push_back({Now() + kDelay, std::string(buffer.data(), got > 0 ? static_cast<size_t>(got) : 0)});
  }
}

bool FarPath::Deliver(Way* way) {
  while (!way->pieces.empty() && Now() >= way->pieces.front().due) {
    const std::string& bytes = way->pieces.front().bytes;
    if (bytes.empty()) {
      shutdown(way->to, SHUT_WR);
    } else if (send(way->to, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) {
      return false;
    }
    way->pieces.pop_front();
  }
  return true;
}

}  // namespace annulus
