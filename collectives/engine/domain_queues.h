// DomainQueues: a communicator's queues, one for each memory domain of the process that has a processor of its own. It
// finds the queue for a user's pointer, and lets the communicator sleep while devices work.
//
// Threads: QueueOf, Prepare and host_only from any thread; the rest from the thread that drives the communicator.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "collectives/core/buffer.h"
#include "collectives/reduce/memory_domains.h"
#include "transport/descriptor_watch.h"

namespace annulus {

class DomainQueues {
 public:
  // Opens a queue in each of the devices of `domains`, which outlive it; null: there is host memory only.
  // Errors: those of MemoryDomain::OpenQueue.
  static Status Open(const MemoryDomains* domains, ReduceOn on, std::unique_ptr<DomainQueues>* queues);

  // Waits for the work under way.
  ~DomainQueues() { Drain(); }

  // Whether all memory is host memory.
  bool host_only() const { return entries_.empty(); }

  // Queue of the domain in which `pointer` lies; null: host memory.
  DomainQueue* QueueOf(const void* pointer) const;

  // Sets *queue as QueueOf does, and gets its domain ready for `bytes` bytes; the queue too, if it `gets_work` on them:
  // what a call in a stream has is copied there. Errors: those of MemoryDomain::Prepare.
  Status Prepare(const void* pointer, size_t bytes, bool gets_work, DomainQueue** queue) const;

  // Names the reactor in which the communicator sleeps; it outlives this object.
  void WatchIn(Reactor* reactor);

  // Asks the reactor to wake when unfinished work finishes. Returns false when a queue with unfinished work has no
  // descriptor, so that only polling tells: do not sleep then.
  bool Arm();

  // DomainQueue::Drain of all queues: afterwards no device accesses slots or users' buffers.
  void Drain();

 private:
  struct Entry {
    MemoryDomain* domain = nullptr;
    std::unique_ptr<DomainQueue> queue;
    std::unique_ptr<DescriptorWatch> watch;  // Null when the queue has no descriptor.
  };

  ReduceOn on_ = ReduceOn::kAuto;
  std::vector<Entry> entries_;
};

}  // namespace annulus
