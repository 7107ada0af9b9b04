#include "collectives/engine/domain_queues.h"

#include <utility>

#include "base/check.h"

namespace annulus {

Status DomainQueues::Open(const MemoryDomains* domains, ReduceOn on, std::unique_ptr<DomainQueues>* queues) {
  auto opened = std::make_unique<DomainQueues>();
  opened->on_ = on;
  if (domains != nullptr) {
    for (MemoryDomain* const domain : domains->devices()) {
      Entry entry;
      entry.domain = domain;
      ANNULUS_RETURN_IF_ERROR(domain->OpenQueue(on, &entry.queue));
      ANNULUS_CHECK(entry.queue != nullptr && entry.queue->kind() == domain->kind());
      opened->entries_.push_back(std::move(entry));
    }
  }
  *queues = std::move(opened);
  return Status();
}

DomainQueue* DomainQueues::QueueOf(const void* pointer) const {
  for (const Entry& entry : entries_) {
    if (entry.domain->Owns(pointer)) return entry.queue.get();
  }
  return nullptr;
}

Status DomainQueues::Prepare(const void* pointer, size_t bytes, bool gets_work, DomainQueue** queue) const {
  *queue = nullptr;
  for (const Entry& entry : entries_) {
    if (!entry.domain->Owns(pointer)) continue;
    *queue = entry.queue.get();
    return entry.domain->Prepare(pointer, bytes, on_, gets_work ? entry.queue.get() : nullptr);
  }
  return Status();
}

void DomainQueues::WatchIn(Reactor* reactor) {
  for (Entry& entry : entries_) {
    const int fd = entry.queue->wake_fd();
    if (fd >= 0) entry.watch = std::make_unique<DescriptorWatch>(reactor, fd);
  }
}

bool DomainQueues::Arm() {
  for (Entry& entry : entries_) {
    if (entry.queue->unfinished() == 0) continue;
    if (entry.watch == nullptr) return false;
    entry.watch->Arm();
  }
  return true;
}

void DomainQueues::Drain() {
  for (Entry& entry : entries_) entry.queue->Drain();
}

}  // namespace annulus
