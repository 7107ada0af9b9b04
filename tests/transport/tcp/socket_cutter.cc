#include "tests/transport/tcp/socket_cutter.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/check.h"

namespace annulus {
namespace {

constexpr uint32_t kEstablished = 1;

bool BringLoopbackUp() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::snprintf(request.ifr_name, sizeof request.ifr_name, "lo");
  request.ifr_flags = IFF_UP;
  const bool up = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  if (fd >= 0) close(fd);
  return up;
}

// Reads "ADDRESS:PORT" in hexadecimal digits; the address's words are as they lie in memory.
void Parse(const std::string& text, uint32_t address[4], uint16_t* port) {
  const size_t colon = text.find(':');
  for (size_t i = 0; i * 8 < colon; ++i) {
    address[i] = static_cast<uint32_t>(std::stoul(text.substr(i * 8, 8), nullptr, 16));
  }
  *port = htons(static_cast<uint16_t>(std::stoul(text.substr(colon + 1), nullptr, 16)));
}

}  // namespace

std::unique_ptr<SocketCutter> SocketCutter::Create(std::string* why) {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    *why = std::string("may not create a network namespace: ") + std::strerror(errno);
    return nullptr;
  }
  const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (fd < 0 || !BringLoopbackUp()) {
    *why = std::string("cannot use the network namespace: ") + std::strerror(errno);
    if (fd >= 0) close(fd);
    return nullptr;
  }
  return std::unique_ptr<SocketCutter>(new SocketCutter(fd));
}

SocketCutter::~SocketCutter() { close(socket_); }

std::vector<SocketCutter::End> SocketCutter::Ends() const {
  std::vector<End> ends;
  for (const bool is_ipv6 : {false, true}) {
    std::ifstream list(is_ipv6 ? "/proc/thread-self/net/tcp6" : "/proc/thread-self/net/tcp");
    std::string line;
    std::getline(list, line);  // The heading.
    while (std::getline(list, line)) {
      std::istringstream words(line);
      std::string number, state;
      End end;
      end.is_ipv6 = is_ipv6;
      words >> number >> end.from >> end.to >> state;
      if (std::stoul(state, nullptr, 16) != kEstablished) continue;
      end.own_port = static_cast<uint32_t>(std::stoul(end.from.substr(end.from.find(':') + 1), nullptr, 16));
      ends.push_back(std::move(end));
    }
    if (!ends.empty()) break;  // Links have one family, and the kernel takes milliseconds for such a list.
  }
  return ends;
}

// The kernel would find the listener in place of a connection that is gone meanwhile, so the cookie says which one it
// is.
bool SocketCutter::Cut(const End& end) {
  struct {
    nlmsghdr header;
    inet_diag_req_v2 wanted;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.wanted.sdiag_family = end.is_ipv6 ? AF_INET6 : AF_INET;
  request.wanted.sdiag_protocol = IPPROTO_TCP;
  request.wanted.idiag_states = ~0u;
  inet_diag_sockid& id = request.wanted.id;
  Parse(end.from, id.idiag_src, &id.idiag_sport);
  Parse(end.to, id.idiag_dst, &id.idiag_dport);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  struct {
    nlmsghdr header;
    union {
      nlmsgerr result;
      inet_diag_msg found;
    };
    char rest[512];
  } answer{};
  const auto ask = [&] {
    ANNULUS_CHECK(send(socket_, &request, sizeof request, 0) == static_cast<ssize_t>(sizeof request));
    ANNULUS_CHECK(recv(socket_, &answer, sizeof answer, 0) > 0);
  };
  ask();
  if (answer.header.nlmsg_type == NLMSG_ERROR || answer.found.idiag_state != kEstablished) return false;
  std::copy_n(answer.found.id.idiag_cookie, 2, id.idiag_cookie);
  request.header.nlmsg_type = SOCK_DESTROY;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
  ask();
  ANNULUS_CHECK(answer.header.nlmsg_type == NLMSG_ERROR);
  ANNULUS_CHECK(answer.result.error == 0 || answer.result.error == -ENOENT || answer.result.error == -ESTALE);
  return answer.result.error == 0;
}

bool SocketCutter::CutAny(std::minstd_rand* random) {
  const std::vector<End> ends = Ends();
  return !ends.empty() && Cut(ends[(*random)() % ends.size()]);
}

}  // namespace annulus
