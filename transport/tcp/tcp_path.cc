#include "transport/tcp/tcp_path.h"

#include <linux/tcp.h>  // It knows tcpi_min_rtt, and cannot be included beside the netinet/tcp.h that asio includes.
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace annulus {

std::optional<uint32_t> LeastRoundTripUs(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return std::nullopt;
  if (bytes < offsetof(tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt) return std::nullopt;
  return info.tcpi_min_rtt;
}

}  // namespace annulus
