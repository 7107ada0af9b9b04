// Messages over a UNIX socket that may carry a file (SCM_RIGHTS), and the check of the files that come.
//
// Threads: as the socket's.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace annulus {

// Like send(2), but without blocking and without a signal. `fd` is a file to pass along, or -1.
ssize_t SendWithFile(int socket, const void* data, size_t bytes, int fd);

// Like recv(2), but without blocking. *fd is the file that came along, which the caller then owns, or -1. Sets *lost
// when the kernel dropped a file because this process has no descriptor left. A message with a file ends a read.
ssize_t ReceiveWithFile(int socket, void* data, size_t bytes, int* fd, bool* lost);

// Whether the file is memory that can be mapped without fear: sealed against shrinking, and not of huge pages
// (hugetlb), whose mapping raises SIGBUS where the pool of such pages is exhausted.
bool IsShareableFile(int fd);

}  // namespace annulus
