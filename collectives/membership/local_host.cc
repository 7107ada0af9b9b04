#include "collectives/membership/local_host.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "base/log.h"
#include "collectives/membership/bootstrap_messages.h"
#include "transport/address.h"
#include "transport/security/door.h"

namespace annulus {
namespace {

// Addresses that are reserved for documentation: only a default route leads there.
constexpr const char* kFarAway[] = {"192.0.2.1:9", "[2001:db8::1]:9"};

// Order of preference; 0: of no use.
int Worth(const sockaddr* address) {
  if (address == nullptr) return 0;
  if (address->sa_family == AF_INET) return 3;
  if (address->sa_family != AF_INET6) return 0;
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) ? 1 : 2;
}

// The best address of the interface, or of all except the loopback if `name` is empty; "" when there is none.
std::string AddressOfInterface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  const ifaddrs* best = nullptr;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const bool fits = name.empty() ? (entry->ifa_flags & IFF_LOOPBACK) == 0 : name == entry->ifa_name;
    if (!fits || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (Worth(entry->ifa_addr) > (best == nullptr ? 0 : Worth(best->ifa_addr))) best = entry;
  }
  if (best == nullptr) return "";
  const bool is_v4 = best->ifa_addr->sa_family == AF_INET;
  return HostText(StreamEndpoint(best->ifa_addr, is_v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)));
}

}  // namespace

Status FindLocalHost(const std::string& rendezvous, Deadline deadline, std::string* host) {
  std::vector<StreamEndpoint> endpoints;
  ANNULUS_RETURN_IF_ERROR(Resolve(rendezvous, deadline, &endpoints));
  if (IsOwnName(rendezvous, endpoints)) return FindOwnHost("", host);
  int error = 0;
  for (const StreamEndpoint& endpoint : endpoints) {
    // Connecting a datagram socket picks the route and sends nothing.
    const int fd = socket(endpoint.data()->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own{};
    socklen_t bytes = sizeof own;
    const bool found = fd >= 0 && connect(fd, endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0 &&
                       getsockname(fd, reinterpret_cast<sockaddr*>(&own), &bytes) == 0;
    error = errno;
    if (fd >= 0) close(fd);
    if (!found) continue;
    *host = HostText(StreamEndpoint(&own, bytes));
    return Status();
  }
  return Status::System("no route leads to the rendezvous " + rendezvous, error);
}

Status AwaitLocalHost(const std::string& rendezvous, int rank, Deadline deadline,
                      const std::function<Status()>& give_up, std::string* host) {
  constexpr Nanoseconds kLookupLimit = 5 * kSecond;  // Then the name is looked up again.
  constexpr Nanoseconds kPause = 100 * kMillisecond;
  const Nanoseconds start = Now();
  for (bool is_told = false;; is_told = true) {
    Status status = FindLocalHost(rendezvous, std::min(deadline, Now() + kLookupLimit), host);
    const bool may_come = status.code() == Code::kSystem || status.code() == Code::kTimeout;
    if (!may_come || IsOutOfDescriptors(status.os_errno())) return status;
    if (Now() + kPause >= deadline) {
      return {Code::kTimeout,
              "found no way to the rendezvous " + rendezvous + " within " + SecondsText(Now() - start) + ": " +
                  status.message(),
              rank, status.os_errno()};
    }
    if (!is_told) Log(LogLevel::kWarn, rank, "%s; trying again", status.message().c_str());
    poll(nullptr, 0, static_cast<int>(kPause / kMillisecond));
    if (give_up) ANNULUS_RETURN_IF_ERROR(give_up());
  }
}

Status FindOwnHost(const std::string& interface_name, std::string* host) {
  std::string found;
  if (!interface_name.empty()) {
    found = AddressOfInterface(interface_name);
    if (found.empty()) {
      return Status::Invalid("interface_name (ANNULUS_INTERFACE) is " + interface_name +
                             ", but this host has no such interface that is up and has an address");
    }
  }
  for (const char* const far_away : kFarAway) {
    if (found.empty() && !FindLocalHost(far_away, kNoDeadline, &found).ok()) found.clear();
  }
  if (found.empty()) found = AddressOfInterface("");
  *host = found.empty() ? "127.0.0.1" : found;
  return Status();
}

}  // namespace annulus
