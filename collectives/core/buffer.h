// Buffer: a place in memory, and the domain in which it lies.
//
// Threads: plain values.
#pragma once

#include <cstddef>

namespace annulus {

class DomainQueue;

// Memory that is written. A plain pointer becomes a buffer in host memory.
struct Buffer {
  Buffer() = default;
  Buffer(void* memory, DomainQueue* domain = nullptr) : data(static_cast<std::byte*>(memory)), queue(domain) {}

  std::byte* data = nullptr;
  // The communicator's queue on the domain; null: host memory, on which the CPU works.
  DomainQueue* queue = nullptr;
};

// Memory that is only read.
struct ConstBuffer {
  ConstBuffer() = default;
  ConstBuffer(const void* memory, DomainQueue* domain = nullptr)
      : data(static_cast<const std::byte*>(memory)), queue(domain) {}

  const std::byte* data = nullptr;
  DomainQueue* queue = nullptr;
};

// The queue that does an operation which reads `input` and writes `output`: that of the output's domain or, when the
// output lies in host memory, that of the input's. Null when both lie in host memory: then the CPU does it.
// Slots count as host memory, because every device can access them.
inline DomainQueue* QueueFor(DomainQueue* output, DomainQueue* input) { return output != nullptr ? output : input; }

}  // namespace annulus
