#include "transport/memory/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace annulus {

std::byte* MapPages(size_t bytes, int fd) {
  const bool is_huge = bytes >= kHugePageBytes;
  const size_t unit = is_huge ? kHugePageBytes : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t reserved = bytes + unit;
  void* const reservation = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reservation == MAP_FAILED) return nullptr;
  std::byte* const begin = static_cast<std::byte*>(reservation);
  std::byte* const base = begin + (unit - reinterpret_cast<uintptr_t>(begin) % unit) % unit;
  const int kind = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  if (mmap(base, bytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED, fd, 0) == MAP_FAILED) {
    munmap(reservation, reserved);
    return nullptr;
  }
  if (base > begin) munmap(begin, static_cast<size_t>(base - begin));
  std::byte* const end = base + bytes;
  if (begin + reserved > end) munmap(end, static_cast<size_t>(begin + reserved - end));
  // A kernel without huge pages for such memory refuses, which costs speed only.
  if (is_huge) (void)madvise(base, bytes, MADV_HUGEPAGE);
  return base;
}

}  // namespace annulus
