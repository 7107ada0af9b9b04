// TransportOptions: the user's settings for transports, and the transports' names. Includes no transport's code.
//
// Threads: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "base/settings.h"
#include "transport/reconnect.h"
#define ANNULUS_TRANSPORT_HEADERS
#include "transport/select/transports.inc"
#undef ANNULUS_TRANSPORT_HEADERS

namespace annulus {

// The transport that the user selected: 1 + its index in Transports(), or kAuto.
enum class TransportChoice : uint8_t { kAuto };

// Whether what ranks send over a network is encrypted.
enum class Encryption : uint8_t { kOff, kRequired };
inline constexpr const char* kEncryptionWords[] = {"off", "required"};

// Indexed by TransportChoice: "auto", then the transports' names in the order of Transports().
inline constexpr const char* kTransportWords[] = {
    "auto",
#define ANNULUS_SETTING(...)
#define ANNULUS_TRANSPORT(Backend) k##Backend##Name,
#include "transport/select/transports.inc"
#undef ANNULUS_TRANSPORT
#undef ANNULUS_SETTING
};

struct TransportOptions {
#define ANNULUS_SETTING(name, Type, unset, ...) Type name = unset;
#include "transport/select/transport_settings.inc"
#undef ANNULUS_SETTING
};

}  // namespace annulus
