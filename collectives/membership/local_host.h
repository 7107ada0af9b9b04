// LocalHost: the address from which this host reaches the rendezvous, and at which its peers can therefore reach it.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace annulus {

// Output: a numeric IPv4 or IPv6 address. Sends nothing; blocks only to resolve a name, up to `deadline`.
// Errors: those of Resolve; kSystem when no route leads there.
Status FindLocalHost(const std::string& rendezvous, Deadline deadline, std::string* host);

}  // namespace annulus
