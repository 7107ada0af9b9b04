// MemoryDomain: a kind of memory of this process, who may access it, and what works on it: host memory and the CPU, or
// the memory of a GPU and that GPU.
//
// A domain belongs to the process, because memory does. Each communicator opens a queue of its own on it, so that
// communicators share no lock on the data path, and each sleeps on a descriptor of its own.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "collectives/reduce/domain_queue.h"
#include "collectives/reduce/stream_call.h"
#include "cuda_kernels/reduce_types.h"
#include "transport/memory/memory_kind.h"
#include "transport/memory/slot_memory.h"

namespace annulus {

// As SlotMemory, a domain makes slots that its processor and the CPU can access.
class MemoryDomain : public SlotMemory {
 public:
  explicit MemoryDomain(MemoryKind kind) : kind_(kind) {}

  MemoryKind kind() const { return kind_; }

  // Whether the memory at `pointer` is of this domain.
  virtual bool Owns(const void* pointer) const = 0;

  // Prepares `bytes` bytes at `pointer`, which it owns, for a call, so that a bad buffer is refused before the call
  // exists. Prepares `queue` too, which it has opened, so that driving it never waits for a device; null: nothing will
  // be submitted. Anything the queue still lacks is reported by its first operation. Errors: kInvalidArgument when they
  // are not all its memory, or not any more; kUnsupported when it cannot work on them, as `on` says; kSystem or
  // kOutOfMemory of a device.
  virtual Status Prepare(const void* pointer, size_t bytes, ReduceOn on, DomainQueue* queue) {
    static_cast<void>(pointer), static_cast<void>(bytes), static_cast<void>(on), static_cast<void>(queue);
    return Status();
  }

  // Opens a queue for one communicator, which the domain outlives. Null: the CPU works on this memory.
  // Errors: kSystem or kOutOfMemory of a device.
  virtual Status OpenQueue(ReduceOn on, std::unique_ptr<DomainQueue>* queue) = 0;

  // Opens what a communicator, which the domain outlives, has for calls that a stream of the domain's devices orders;
  // it may take up to `most_bytes` of pinned memory. Null: the domain has no streams.
  virtual std::unique_ptr<StreamCalls> OpenStreams(size_t most_bytes) {
    static_cast<void>(most_bytes);
    return nullptr;
  }

 private:
  const MemoryKind kind_;
};

// All memory that no other domain owns.
class HostDomain final : public MemoryDomain {
 public:
  HostDomain() : MemoryDomain(MemoryKind::kHost) {}

  bool Owns(const void*) const override { return true; }
  Status OpenQueue(ReduceOn, std::unique_ptr<DomainQueue>* queue) override {
    queue->reset();
    return Status();
  }
  std::byte* AllocateSlots(size_t bytes) override { return AllocateHostSlots(bytes); }
  void FreeSlots(std::byte* slots, size_t) override { FreeHostSlots(slots); }
  Status RegisterSlots(std::byte*, size_t) override { return Status(); }
  void UnregisterSlots(std::byte*, size_t) override {}
};

}  // namespace annulus
