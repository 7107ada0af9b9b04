// How long a link waits for another connection when the one it has breaks: the meaning of ANNULUS_RECONNECT_MS.
//
// Threads: constants and plain functions.
#pragma once

#include <cstdint>

namespace annulus {

inline constexpr int64_t kLongestReconnectMs = 3'600'000;
// Unless the user says how long, links between hosts wait this long. Within a host nothing on the way can break one, so
// there is nothing to wait for.
inline constexpr int64_t kReconnectByPlace = -1;
inline constexpr int64_t kReconnectBetweenHostsMs = 10'000;

// 0: a link that breaks has ended.
constexpr int64_t ReconnectMs(int64_t setting, bool same_host) {
  if (setting != kReconnectByPlace) return setting;
  return same_host ? 0 : kReconnectBetweenHostsMs;
}

}  // namespace annulus
