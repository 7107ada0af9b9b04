// The name of TCP links, and the words and bounds of their settings: the rows of tcp_settings.inc.
//
// Threads: constants.
#pragma once

#include <cstdint>

namespace annulus {

inline constexpr const char* kTcpName = "tcp";

inline constexpr int64_t kLongestInterfaceName = 15;  // IFNAMSIZ less the terminator.

}  // namespace annulus
