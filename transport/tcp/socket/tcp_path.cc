#include "transport/tcp/socket/tcp_path.h"

#include <linux/tcp.h>  // It knows tcpi_min_rtt, and cannot be included beside the netinet/tcp.h that asio includes.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace annulus {
namespace {

bool InfoOf(int fd, tcp_info* info, socklen_t* bytes) {
  *bytes = sizeof *info;
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, bytes) == 0;
}

bool HasAcknowledged(socklen_t bytes) {
  return bytes >= offsetof(tcp_info, tcpi_bytes_acked) + sizeof tcp_info().tcpi_bytes_acked;
}

bool HasRoundTrip(socklen_t bytes) {
  return bytes >= offsetof(tcp_info, tcpi_min_rtt) + sizeof tcp_info().tcpi_min_rtt;
}

}  // namespace

std::optional<uint32_t> LeastRoundTripUs(int fd) {
  tcp_info info{};
  socklen_t bytes = 0;
  if (!InfoOf(fd, &info, &bytes) || !HasRoundTrip(bytes)) return std::nullopt;
  return info.tcpi_min_rtt;
}

PathAnswers PathAnswersOf(int fd) {
  tcp_info info{};
  socklen_t bytes = 0;
  if (!InfoOf(fd, &info, &bytes)) return {};
  const bool owes = info.tcpi_unacked > 0 && HasAcknowledged(bytes);
  return {.unanswered = info.tcpi_retransmits + info.tcpi_probes,
          .owes_after = owes ? std::optional<uint64_t>(info.tcpi_bytes_acked) : std::nullopt,
          .quiet = std::min(info.tcpi_last_data_recv, info.tcpi_last_ack_recv) * kMillisecond,
          .round_trip = HasRoundTrip(bytes) ? info.tcpi_min_rtt * kMicrosecond : 0};
}

bool IsDropped(int fd) {
  constexpr uint8_t kClosed = 7;  // TCP_CLOSE of netinet/tcp.h.
  tcp_info info{};
  socklen_t bytes = 0;
  return InfoOf(fd, &info, &bytes) && info.tcpi_state == kClosed;
}

// Linux resets a connection that both directions of were shut down when data comes (RFC 1122, section 4.2.2.13).
void StopTaking(int fd) { shutdown(fd, SHUT_RDWR); }

}  // namespace annulus
