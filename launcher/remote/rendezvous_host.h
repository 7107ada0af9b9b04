// RendezvousHost: the address at which the other hosts can reach a job's first host.
//
// Threads: a plain function.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "launcher/job/hosts.h"

namespace annulus {

// `ssh_connections` holds, for each host, what sshd there reports about the connection (SSH_CONNECTION: "address port
// address port", first our end and then its own), or "". The end at the first host is an address that was reached from
// here. If the first host is this one, our end of the first connection is an address that others see.
//
// Errors: kInvalidArgument  no such address is known, or others cannot use it.
Status FindRendezvousHost(const std::vector<Placement>& placements, const std::vector<std::string>& ssh_connections,
                          std::string* host);

}  // namespace annulus
