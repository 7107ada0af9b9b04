// Moves pages of this process between private memory and a memory file, in place: addresses and content stay.
//
// Threads: nobody may write the pages while they move; reading them is fine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace annulus {

size_t PageBytes();
size_t RoundUpToPage(size_t bytes);

// Whether all of [begin, begin + bytes), whole pages, is readable and writable memory of anonymous private mappings,
// and of no heap or stack that grows. Errors: kUnsupported naming what is there; kSystem.
Status CheckPrivateAnonymous(const std::byte* begin, size_t bytes);

// Moves the pages into the file `fd`, from its beginning on, and maps it in their place.
// Errors: kOutOfMemory, kSystem; the pages are as before then.
Status MovePagesToFile(std::byte* begin, size_t bytes, int fd);

// Copies the pages into private memory, and maps that in their place. Errors: kOutOfMemory; some pages may have moved.
Status MovePagesBack(std::byte* begin, size_t bytes);

}  // namespace annulus
