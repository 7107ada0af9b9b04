// HandlerMemory: a place for one handler of the event loop. A rank that sleeps waits for the same descriptors again and
// again; with this it allocates nothing for that.
//
// Threads: one at a time.
#pragma once

#include <asio/bind_allocator.hpp>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace annulus {

class HandlerMemory {
 public:
  HandlerMemory() = default;
  HandlerMemory(const HandlerMemory&) = delete;
  HandlerMemory& operator=(const HandlerMemory&) = delete;

  // `handler`, to be kept in this place while it waits; elsewhere when the place is taken or too small. The handler
  // must keep this object alive.
  template <class Handler>
  auto Keep(Handler handler) {
    return asio::bind_allocator(Allocator<void>(this), std::move(handler));
  }

 private:
  // What the loop stores for a handler that holds a shared_ptr: about 170 bytes with Asio 1.22.
  static constexpr size_t kBytes = 256;

  template <class T>
  struct Allocator {
    using value_type = T;

    explicit Allocator(HandlerMemory* place) : memory(place) {}
    template <class U>
    Allocator(const Allocator<U>& other) : memory(other.memory) {}  // NOLINT: allocators convert to each other.

    T* allocate(size_t count) const { return static_cast<T*>(memory->Allocate(count * sizeof(T))); }
    void deallocate(T* place, size_t) const { memory->GiveBack(place); }

    template <class U>
    bool operator==(const Allocator<U>& other) const {
      return memory == other.memory;
    }

    HandlerMemory* memory;
  };

  void* Allocate(size_t bytes) {
    if (is_taken_ || bytes > kBytes) return ::operator new(bytes);
    is_taken_ = true;
    return place_;
  }
  void GiveBack(void* place) {
    if (place != place_) return ::operator delete(place);
    is_taken_ = false;
  }

  alignas(std::max_align_t) std::byte place_[kBytes];
  bool is_taken_ = false;
};

}  // namespace annulus
