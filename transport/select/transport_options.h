// TransportOptions: the user's settings for transports, and the transports' names. Includes no transport's code.
//
// Threads: plain values.
#pragma once

#include <cstdint>

#include "base/settings.h"
#include "transport/shm/shm_settings.h"
#include "transport/tcp/tcp_settings.h"
#include "transport/verbs/verbs_settings.h"

namespace annulus {

// The transport that the user selected: any, or 1 + its index in Transports().
enum class TransportChoice : uint8_t { kAuto };

// Indexed by TransportChoice: "auto", then the transports' names in the order of Transports().
inline constexpr const char* kTransportWords[] = {"auto", kShmName, kTcpName, kVerbsName};

struct TransportOptions : TcpSettings, ShmSettings, VerbsSettings {
#define ANNULUS_SETTING(name, Type, unset, ...) Type name = unset;
#include "transport/select/choice_settings.inc"
#undef ANNULUS_SETTING
};

}  // namespace annulus
