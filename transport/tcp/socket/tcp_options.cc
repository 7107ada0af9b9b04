#include "transport/tcp/socket/tcp_options.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "transport/tcp/socket/tcp_path.h"

namespace annulus {
namespace {

// A path that dies silently is detected within about half a minute. A host that dies is detected by its control
// connection long before (control_stream.cc).
//
// While nothing is unacknowledged, keepalive detects it: 10 to 19 s of silence, then ten probes 1 s apart. Links that
// fall silent together, as those of a mesh do after a collective, must not all probe at the same moment: thousands of
// probes at once overflow queues and are lost, and live links would be lost with them. So each socket waits for a
// different number of seconds. While something is unacknowledged, retransmission detects it. Its back-off is limited to
// 1 s so that the kernel's 15 attempts (tcp_retries2) end within 15 s; kernels before 6.15 lack the option.
//
// TCP_USER_TIMEOUT would bound the same more directly. But it also ends connections to a peer that is alive and
// acknowledges probes but does not read for that long: a rank that computes while its neighbour sends ahead.
constexpr int kKeepIdleSeconds = 10;
constexpr int kKeepIdleSpread = 10;
constexpr int kKeepIntervalSeconds = 1;
constexpr int kKeepProbes = 10;
constexpr int kMaxRetransmitTimeoutMs = 1000;
constexpr int kRtoMaxMsOption = 44;  // TCP_RTO_MAX_MS of linux/tcp.h; too new for Debian's headers.

// BBR's pacing timers cost a third to a half of the bandwidth when both directions of a loopback link are busy. Between
// hosts it sends at one percent less than its estimate of the rate, and sometimes more slowly to look for a shorter
// path: it reaches 92 % of a link of 100 Mbit/s where the others reach 95 %. It is made for long, lossy paths, and is
// kept there. Any user may choose Reno; Cubic is better on fast links but needs the administrator's permission.
constexpr std::string_view kAvoidedCongestionControl = "bbr";
constexpr std::string_view kCongestionControls[] = {"cubic", "reno"};
constexpr uint32_t kShortPathUs = 5'000;  // Round trip within a building; between cities it takes longer.

using Interfaces = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;

Interfaces ListInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) list = nullptr;
  return {list, freeifaddrs};
}

bool ToEndpoint(const sockaddr* address, StreamEndpoint* endpoint) {
  if (address == nullptr) return false;
  if (address->sa_family != AF_INET && address->sa_family != AF_INET6) return false;
  const size_t bytes = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  *endpoint = StreamEndpoint(address, bytes);
  return true;
}

bool IsLinkLocal(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Changes nothing where the kernel has or permits none of the alternatives.
void ChooseCongestionControl(int fd, bool same_host) {
  const bool avoids = CongestionControlOf(fd).starts_with(kAvoidedCongestionControl);
  if (!same_host && !(avoids && LeastRoundTripUs(fd).value_or(kShortPathUs) < kShortPathUs)) return;
  for (const std::string_view name : kCongestionControls) {
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0) return;
    if (!avoids) return;
  }
}

}  // namespace

// Buffer sizes are left to the kernel: it grows them as the connection needs, up to tcp_rmem and tcp_wmem (4 MiB or
// more). SO_SNDBUF and SO_RCVBUF stop this growth and are capped at wmem_max and rmem_max, 208 KiB unless root raised
// them.
Status TuneSocket(int fd, bool same_host) {
  auto set = [fd](int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof(value)) == 0;
  };
  // Frames are already gathered into large writes; the remainder must not wait for an acknowledgement.
  if (!set(IPPROTO_TCP, TCP_NODELAY, 1)) return Status::System("cannot set TCP_NODELAY", errno);
  if (!set(SOL_SOCKET, SO_KEEPALIVE, 1) || !set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds + fd % kKeepIdleSpread) ||
      !set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds) || !set(IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes)) {
    return Status::System("cannot set keepalive", errno);
  }
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 0);                       // A connection that was made again had one until now.
  set(IPPROTO_TCP, kRtoMaxMsOption, kMaxRetransmitTimeoutMs);  // If the kernel has it.
  ChooseCongestionControl(fd, same_host);
  return Status();
}

uint64_t RetransmitsOf(int fd, uint64_t otherwise) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 ? info.tcpi_total_retrans : otherwise;
}

std::string CongestionControlOf(int fd) {
  char name[32] = {};
  socklen_t bytes = sizeof(name) - 1;
  return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) == 0 ? name : "";
}

std::string InterfaceOf(const StreamEndpoint& endpoint) {
  const Interfaces list = ListInterfaces();
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    StreamEndpoint own;
    if (ToEndpoint(entry->ifa_addr, &own) && HostText(own) == HostText(endpoint)) return entry->ifa_name;
  }
  return "";
}

Status AddressOfInterface(const std::string& name, const StreamEndpoint& like, StreamEndpoint* address) {
  const Interfaces list = ListInterfaces();
  bool exists = false;
  StreamEndpoint best;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (name != entry->ifa_name) continue;
    exists = true;
    StreamEndpoint own;
    // A link-local address means nothing to a peer, whose interfaces are numbered differently.
    if (!ToEndpoint(entry->ifa_addr, &own) || IsLinkLocal(entry->ifa_addr)) continue;
    const bool fits = HasAddress(like) && like.data()->sa_family == entry->ifa_addr->sa_family;
    if (!HasAddress(best) || fits) best = own;
    if (fits) break;
  }
  if (!exists) return {Code::kUnsupported, "there is no network interface \"" + name + "\""};
  if (!HasAddress(best)) return {Code::kUnsupported, "the network interface \"" + name + "\" has no usable address"};
  *address = best;
  return Status();
}

}  // namespace annulus
