// What children that this process forks do to memory that RDMA devices use.
//
// After a fork, parent and child share their private pages until one of them writes there; that one then gets a copy.
// On kernels before Linux 5.12 that holds for pages that a device uses, too: the parent writes first, gets the copy,
// and its device goes on with the page that is now the child's. libibverbs can keep such pages out of children
// (ibv_fork_init), and knows where that is of no use, because the kernel copies them for the child (IBV_FORK_UNNEEDED).
//
// Memory that users have registered is shared memory (transport/memory/memory.h), which is never copied, and children
// are promised it.
//
// Threads: as each function says.
#pragma once

#include <cstddef>

#include "transport/verbs/device/verbs_api.h"

namespace annulus {

// Lets the library keep memory of devices out of children, where the kernel needs that. Before this process opens a
// device: the library refuses once it has registered memory. Doing it again is harmless. Returns 0, or the errno with
// which it cannot be done. One thread at a time, for the first time.
int PrepareForForks(const VerbsApi& api);
// Logs that it cannot. Any thread.
void WarnOfForks(int error, int rank);

// Lets children have [begin, begin + bytes) all the same: whole pages of shared memory that a device knows. Any thread.
void ShareWithChildren(const VerbsApi& api, std::byte* begin, size_t bytes);

}  // namespace annulus
