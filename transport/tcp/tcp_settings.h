// TcpSettings: the user's settings of TCP links; each one is a row of tcp_settings.inc.
//
// Threads: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "base/settings.h"

namespace annulus {

inline constexpr const char* kTcpName = "tcp";

inline constexpr int64_t kLongestInterfaceName = 15;  // IFNAMSIZ less the terminator.

struct TcpSettings {
#define ANNULUS_SETTING(name, Type, unset, ...) Type name = unset;
#include "transport/tcp/tcp_settings.inc"
#undef ANNULUS_SETTING
};

}  // namespace annulus
