// How many ports a rank lends to each link: the memory of a link grows with them.
//
// Threads: plain functions.
#pragma once

#include <cstddef>

#include "transport/select/transport_options.h"

namespace annulus {

// The variable that names them.
inline constexpr const char* kLinkPortsVariable = "ANNULUS_VERBS_DEVICE";

// The most that a link may have with these settings; 1 where no transport that they allow has several.
size_t MostLinkPorts(const TransportOptions& options);

}  // namespace annulus
