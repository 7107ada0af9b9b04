// Memory for which the kernel may use pages of 2 MiB. A core, and a device, finds such memory with fewer translations.
//
// Threads: plain functions, for any thread.
#pragma once

#include <cstddef>

namespace annulus {

constexpr size_t kHugePageBytes = 2 << 20;

// Maps `bytes`, whole pages, for reading and writing: the file `fd` from its beginning, shared; or zeroed memory of
// this process alone when it is -1. Where they fill a huge page they begin at one, and the kernel is asked for such
// before anything is there. Returns null when there is no room.
std::byte* MapPages(size_t bytes, int fd);

}  // namespace annulus
