// Listen, tell the others where, connect to the next rank, accept the previous one.
//
// Threads: see perf_socket_pair.h.
#include "bench/perf/limit/perf_socket_pair.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <type_traits>
#include <utility>

#include "base/clock.h"

namespace annulus::perf {
namespace {

constexpr Nanoseconds kPatience = 5 * kSecond;
// Strangers that may knock before the neighbour is given up for lost.
constexpr int kMaxStrangers = 64;

class Socket {
 public:
  explicit Socket(int file = -1) : file_(file) {}
  ~Socket() { Reset(-1); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return file_; }
  int Release() { return std::exchange(file_, -1); }
  void Reset(int file) {
    if (file_ >= 0) close(file_);
    file_ = file;
  }

 private:
  int file_;
};

// What each rank tells the others; zero bytes as the length when it has nothing to offer.
struct Offer {
  uint32_t address_bytes = 0;
  std::array<uint8_t, 28> address{};  // A sockaddr_in or sockaddr_in6.
  std::array<uint32_t, 4> token{};
};
static_assert(sizeof(sockaddr_in6) <= 28 && sizeof(Offer) % 4 == 0 && std::is_trivially_copyable_v<Offer>);

Status FromInterface(const char* name, sockaddr_storage* address, socklen_t* bytes) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return Status::System("limit probe: getifaddrs", errno);
  *bytes = 0;
  for (const ifaddrs* each = list; each != nullptr && *bytes == 0; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || std::strcmp(each->ifa_name, name) != 0) continue;
    if (each->ifa_addr->sa_family == AF_INET) *bytes = sizeof(sockaddr_in);
    if (each->ifa_addr->sa_family == AF_INET6) *bytes = sizeof(sockaddr_in6);
    if (*bytes != 0) std::memcpy(address, each->ifa_addr, *bytes);
  }
  freeifaddrs(list);
  return *bytes != 0 ? Status() : Status::Invalid(std::string("limit probe: no address on interface ") + name);
}

// The address that this rank has towards the rendezvous: connecting a datagram socket asks the routes and sends
// nothing.
Status TowardsRendezvous(const std::string& rendezvous, sockaddr_storage* address, socklen_t* bytes) {
  const size_t colon = rendezvous.rfind(':');
  if (colon == std::string::npos) return Status::Invalid("limit probe: no rendezvous address to reach the ranks by");
  std::string host = rendezvous.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), "9", &hints, &found); error != 0) {
    return {Code::kSystem, std::string("limit probe: cannot resolve the rendezvous: ") + gai_strerror(error)};
  }
  Socket asked(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const bool reached = asked.get() >= 0 && connect(asked.get(), found->ai_addr, found->ai_addrlen) == 0;
  const int error = errno;
  freeaddrinfo(found);
  *bytes = sizeof(*address);
  if (!reached || getsockname(asked.get(), reinterpret_cast<sockaddr*>(address), bytes) != 0) {
    return Status::System("limit probe: no route to the rendezvous", error);
  }
  return Status();
}

Status Listen(const annulus_config_t& config, Socket* listener, Offer* offer) {
  sockaddr_storage address{};
  socklen_t bytes = 0;
  std::string interface_name;
  std::string rendezvous;
  ANNULUS_RETURN_IF_ERROR(ReadSetting(config, "interface_name", &interface_name));
  ANNULUS_RETURN_IF_ERROR(ReadSetting(config, "rendezvous", &rendezvous));
  ANNULUS_RETURN_IF_ERROR(interface_name.empty() ? TowardsRendezvous(rendezvous, &address, &bytes)
                                                 : FromInterface(interface_name.c_str(), &address, &bytes));
  auto* any_port = address.ss_family == AF_INET6 ? &reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                                 : &reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  *any_port = 0;
  listener->Reset(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener->get() < 0) return Status::System("limit probe: socket", errno);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener->get(), name, bytes) != 0 || listen(listener->get(), 8) != 0 ||
      getsockname(listener->get(), name, &bytes) != 0) {
    return Status::System("limit probe: listen", errno);
  }
  if (bytes > offer->address.size()) return {Code::kInternal, "limit probe: an address of unknown size"};
  std::memcpy(offer->address.data(), &address, bytes);
  offer->address_bytes = bytes;
  std::random_device random;
  for (uint32_t& word : offer->token) word = random();
  return Status();
}

void Tune(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // The paced default of some machines halves what a loopback carries both ways; where cubic is missing the default
  // stays.
  sockaddr_storage self{}, peer{};
  socklen_t self_bytes = sizeof(self), peer_bytes = sizeof(peer);
  getsockname(socket, reinterpret_cast<sockaddr*>(&self), &self_bytes);
  getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_bytes);
  const auto host_of = [](const sockaddr_storage& of) {
    return of.ss_family == AF_INET6
               ? std::string(reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in6*>(&of)->sin6_addr), 16)
               : std::string(reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in*>(&of)->sin_addr), 4);
  };
  if (host_of(self) == host_of(peer)) setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
}

bool WaitFor(int socket, short events, Deadline deadline) {
  const Nanoseconds left = deadline - Now();
  pollfd wait{socket, events, 0};
  return left > 0 && poll(&wait, 1, static_cast<int>(left / kMillisecond) + 1) == 1;
}

Status ConnectTo(const Offer& offer, Deadline deadline, Socket* result) {
  if (offer.address_bytes == 0 || offer.address_bytes > offer.address.size()) {
    return {Code::kSystem, "limit probe: the next rank does not listen"};
  }
  sockaddr_storage address{};
  std::memcpy(&address, offer.address.data(), offer.address_bytes);
  result->Reset(socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (connect(result->get(), reinterpret_cast<sockaddr*>(&address), offer.address_bytes) != 0) {
    int error = errno;
    socklen_t bytes = sizeof(error);
    if (error == EINPROGRESS) {
      if (!WaitFor(result->get(), POLLOUT, deadline))
        return {Code::kTimeout, "limit probe: no answer from the next rank"};
      getsockopt(result->get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    if (error != 0) return Status::System("limit probe: connect", error);
  }
  Tune(result->get());
  const ssize_t sent = send(result->get(), offer.token.data(), sizeof(offer.token), MSG_NOSIGNAL);
  return sent == sizeof(offer.token) ? Status() : Status::System("limit probe: send", errno);
}

Status AcceptFrom(int listener, const Offer& own, Deadline deadline, Socket* result) {
  for (int stranger = 0; stranger < kMaxStrangers && WaitFor(listener, POLLIN, deadline); ++stranger) {
    result->Reset(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (result->get() < 0) continue;
    decltype(own.token) token{};
    size_t received = 0;
    while (received < sizeof(token) && WaitFor(result->get(), POLLIN, deadline)) {
      const ssize_t done =
          recv(result->get(), reinterpret_cast<char*>(token.data()) + received, sizeof(token) - received, 0);
      if (done <= 0) break;
      received += static_cast<size_t>(done);
    }
    if (received == sizeof(token) && token == own.token) {
      Tune(result->get());
      return Status();
    }
  }
  return {Code::kTimeout, "limit probe: the previous rank did not connect"};
}

Offer Unpack(const std::vector<int32_t>& all, int rank) {
  Offer offer;
  std::memcpy(static_cast<void*>(&offer), all.data() + static_cast<size_t>(rank) * (sizeof(Offer) / 4), sizeof(Offer));
  return offer;
}

}  // namespace

Status ConnectNeighbours(Group& group, const annulus_config_t& config, Neighbours* links, Status* connected) {
  Socket listener, next, prev;
  Offer own;
  *connected = links->wants_prev ? Listen(config, &listener, &own) : Status();
  if (!connected->ok()) own = Offer();
  std::array<int32_t, sizeof(Offer) / 4> words{};
  std::memcpy(words.data(), &own, sizeof(own));
  std::vector<int32_t> all;
  ANNULUS_RETURN_IF_ERROR(group.Allgather(words, &all));

  const Deadline deadline = DeadlineAfter(kPatience);
  if (connected->ok() && links->wants_next) {
    *connected = ConnectTo(Unpack(all, (group.rank() + 1) % group.size()), deadline, &next);
  }
  if (connected->ok() && links->wants_prev) *connected = AcceptFrom(listener.get(), own, deadline, &prev);
  links->to_next = next.Release();
  links->from_prev = prev.Release();
  return Status();
}

}  // namespace annulus::perf
