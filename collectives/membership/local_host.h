// LocalHost: the address at which the other ranks reach this host: the one from which it reaches the rendezvous, or,
// where rank 0 chooses the rendezvous, one of its own.
#pragma once

#include <functional>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace annulus {

// Output: a numeric IPv4 or IPv6 address; FindOwnHost's where the rendezvous has this host's own name (IsOwnName).
// Sends nothing; blocks only to resolve a name, up to `deadline`. Errors: those of Resolve; kSystem when no route leads
// there.
Status FindLocalHost(const std::string& rendezvous, Deadline deadline, std::string* host);

// The same, tried again up to `deadline`: a name may be known only once rank 0's host is up, as with the services of a
// cluster, and a route only once an interface is. Asks give_up between tries, and fails with what that returns.
// Errors: kTimeout  there was no way to the rendezvous in all that time; says why.
Status AwaitLocalHost(const std::string& rendezvous, int rank, Deadline deadline,
                      const std::function<Status()>& give_up, std::string* host);

// An address of this host for ranks of other hosts: that of the interface named, if any; else the one from which the
// default route starts; else that of any interface that is up; else the loopback's.
// Output: a numeric IPv4 or IPv6 address, the former if there is one.
// Errors: kInvalidArgument  the interface named does not exist or has no address.
Status FindOwnHost(const std::string& interface_name, std::string* host);

}  // namespace annulus
