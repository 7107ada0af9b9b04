// The ports that the links of a rank use: one, unless the user names several.
//
// Nobody has measured several ports of a card, and hosts with many cards mostly have a rank for each; so the default
// stays one.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "transport/verbs/device/verbs_device.h"
#include "transport/verbs/device/verbs_network.h"

namespace annulus {

using VerbsPorts = std::vector<std::unique_ptr<VerbsDevice>>;

// Opens the ports that wish.device names, in its order: "mlx5_0", or "mlx5_0,mlx5_1:2" for port 2 of the second one;
// the best port when it is empty: of all with good addresses in the network of the best one, one that is nearest to the
// rank's GPU, or without a GPU to its CPUs. So ranks of one host may use different devices, and still all reach each
// other. Those that are not usable are left out, and *left_out says which and why; it is "" when none is. Errors:
// kUnsupported when no port is usable or the list is none.
Status FindPorts(const VerbsApi* api, const VerbsWish& wish, VerbsPorts* found, std::string* left_out);

// How many ports that may open at most.
size_t MostPorts(std::string_view devices);

}  // namespace annulus
