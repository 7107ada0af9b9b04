// Moves pages of this process between private memory and a memory file, in place: addresses and content stay the same.
//
// Threads: nobody may write the pages while they move; reading them is fine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace annulus {

size_t PageBytes();
size_t RoundUpToPage(size_t bytes);

// Checks that all of [begin, begin + bytes), whole pages, is readable and writable memory of anonymous private mappings
// that belong to no heap or stack that grows. Errors: kUnsupported naming what was found; kSystem.
Status CheckPrivateAnonymous(const std::byte* begin, size_t bytes);

// Moves the pages into the file `fd`, from its beginning, and maps the file in their place. Errors: kOutOfMemory,
// kSystem; the pages are then as before.
Status MovePagesToFile(std::byte* begin, size_t bytes, int fd);

// Copies the pages into private memory, and maps that in their place. Errors: kOutOfMemory; some pages may have moved.
Status MovePagesBack(std::byte* begin, size_t bytes);

}  // namespace annulus
