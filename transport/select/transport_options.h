// TransportOptions: what users can set of transports, and the transports' names. No transport's code comes with it.
//
// Threads: plain values.
#pragma once

#include <cstdint>

#include "base/settings.h"
#include "transport/shm/shm_settings.h"
#include "transport/tcp/tcp_settings.h"

namespace annulus {

// Which transport the user wants: any, or, as 1 + its index in Transports(), one.
enum class TransportChoice : uint8_t { kAuto };

// By TransportChoice: "auto", then the transports' names in the order of Transports().
inline constexpr const char* kTransportWords[] = {"auto", kShmName, kTcpName};

struct TransportOptions : TcpSettings, ShmSettings {
#define ANNULUS_SETTING(name, Type, unset, ...) Type name = unset;
#include "transport/select/choice_settings.inc"
#undef ANNULUS_SETTING
};

}  // namespace annulus
