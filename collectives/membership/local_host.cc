#include "collectives/membership/local_host.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "transport/address.h"

namespace annulus {

Status FindLocalHost(const std::string& rendezvous, Deadline deadline, std::string* host) {
  std::vector<StreamEndpoint> endpoints;
  ANNULUS_RETURN_IF_ERROR(Resolve(rendezvous, deadline, &endpoints));
  int error = 0;
  for (const StreamEndpoint& endpoint : endpoints) {
    // Connecting a datagram socket picks the route and sends nothing.
    const int fd = socket(endpoint.protocol().family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
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

}  // namespace annulus
