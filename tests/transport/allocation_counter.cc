#include "tests/transport/allocation_counter.h"

#include <cstdlib>
#include <new>

namespace {

thread_local size_t allocations = 0;

void* Allocate(size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace annulus {

size_t AllocationsOfThisThread() { return allocations; }

}  // namespace annulus
