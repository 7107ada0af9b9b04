// What a communicator holds, and its limit.

#include "collectives/comm/communicator.h"

namespace annulus {

MemoryUse Communicator::Memory() const {
  MemoryUse use = fixed_memory_;
  for (const auto& endpoint : setup_->links().all()) use.peers_mapped += endpoint->Memory().mapped;
  use.work += messages_.MemoryBytes();
  std::lock_guard<std::mutex> lock(mu_);
  use.requests = RequestBytes();
  return use;
}

MemoryUse Communicator::FixedMemory() const {
  MemoryUse use;
  for (const auto& endpoint : setup_->links().all()) {
    const LinkMemory link = endpoint->Memory();
    use.staging += link.staging;
    use.links += link.bookkeeping;
  }
  use.work = sizeof(Communicator) - sizeof(Engine) + engine_.MemoryBytes();
  return use;
}

size_t Communicator::RequestBytes() const {
  size_t bytes = 0;
  for (const auto& request : requests_) {
    bytes += sizeof(Request) + request->numbers.capacity() * sizeof(size_t) +
             request->members.capacity() * sizeof(Request*) + request->segments.MemoryBytes();
  }
  return bytes;
}

bool Communicator::OverBudget(const CallArguments& arguments, Code* code) {
  const size_t budget = static_cast<size_t>(setup_->options().memory_bytes);
  if (budget == 0) return false;
  const size_t ranks = static_cast<size_t>(nranks());
  size_t wanted = sizeof(Request);
  if (HasVariableParts(arguments.kind)) wanted += 4 * ranks * sizeof(size_t);
  // Fused, two calls of a group or more share a request and its chunks; the group has one as well.
  const size_t fused = ranks * (Segments::kSegmentBytes + sizeof(Part) / 2) + sizeof(Request*) + sizeof(Request) / 2;
  if (group_open_) wanted += (group_.size() + 1) * fused + sizeof(Request);
  const size_t held = fixed_memory_.total() + messages_.MemoryBytes() + RequestBytes();
  if (held + wanted <= budget) return false;
  *code = Code::kOutOfMemory;
  RecordRefusal({*code, "one more request would exceed memory_bytes (ANNULUS_MEMORY_BYTES), " + std::to_string(budget) +
                            ": the communicator holds " + std::to_string(held) + " bytes, " +
                            std::to_string(requests_.size()) + " requests included"});
  return true;
}

}  // namespace annulus
