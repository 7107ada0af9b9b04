#include "tests/transport/allocation_counter.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

thread_local size_t allocations = 0;
thread_local size_t left_until_failure = 0;  // 0: none fails.
thread_local bool has_failed = false;

thread_local bool is_spared = false;  // The thread that exhausts the others.
std::atomic<bool> exhausts{false};    // Whether the others' allocations are counted.
std::atomic<size_t> allocations_of_others{0};
std::atomic<size_t> first_to_fail{0};
std::atomic<size_t> count_to_fail{0};
std::atomic<bool> others_have_failed{false};

bool IsExhausted() {
  if (!exhausts.load() || is_spared) return false;
  const size_t number = ++allocations_of_others;
  const bool fails = number >= first_to_fail.load() && number - first_to_fail.load() < count_to_fail.load();
  if (fails) others_have_failed.store(true);
  return fails;
}

void* Allocate(size_t bytes) {
  ++allocations;
  if (IsExhausted()) throw std::bad_alloc();
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
  if (IsExhausted()) return nullptr;
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

void ExhaustOthers(size_t number, size_t count) {
  is_spared = true;
  others_have_failed.store(false);
  allocations_of_others.store(0);
  first_to_fail.store(number);
  count_to_fail.store(count);
  exhausts.store(true);
}

bool StopExhausting() {
  exhausts.store(false);
  is_spared = false;
  return others_have_failed.load();
}

}  // namespace annulus
