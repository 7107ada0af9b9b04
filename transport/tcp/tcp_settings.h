// The name of TCP links, and the words and bounds of their settings: the rows of tcp_settings.inc.
//
// Threads: constants.
#pragma once

#include <cstdint>

namespace annulus {

inline constexpr const char* kTcpName = "tcp";

inline constexpr int64_t kLongestInterfaceName = 15;  // IFNAMSIZ less the terminator.

inline constexpr int64_t kLongestReconnectMs = 3'600'000;
// Unless the user says how long, broken connections between hosts are awaited this long. Within a host nothing on the
// way can break one, so there is nothing to wait for.
inline constexpr int64_t kReconnectByPlace = -1;
inline constexpr int64_t kReconnectBetweenHostsMs = 10'000;

constexpr int64_t ReconnectMs(int64_t setting, bool same_host) {
  if (setting != kReconnectByPlace) return setting;
  return same_host ? 0 : kReconnectBetweenHostsMs;
}

}  // namespace annulus
