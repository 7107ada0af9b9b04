#include "tests/transport/allocation_counter.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

thread_local size_t allocations = 0;
thread_local size_t left_until_failure = 0;  // 0: none fails.
thread_local bool has_failed = false;

void* Allocate(size_t bytes) {
  ++allocations;
  if (left_until_failure > 0 && --left_until_failure == 0) {
    has_failed = true;
    throw std::bad_alloc();
  }
  void* memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes > 0 ? bytes : 1); }
// The event loop takes memory for its handlers from here.
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  ++allocations;
  void* memory = nullptr;
  return posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes) == 0 ? memory : nullptr;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace annulus {

size_t AllocationsOfThisThread() { return allocations; }

void FailAllocation(size_t number) {
  has_failed = false;
  left_until_failure = number;
}

bool StopFailing() {
  left_until_failure = 0;
  return has_failed;
}

}  // namespace annulus
