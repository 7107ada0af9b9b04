// Communicator's counters: what it has done, and what it holds.
#include "base/clock.h"
#include "collectives/comm/communicator.h"

namespace annulus {

Totals Communicator::ReadTotals() const { return setup_->monitor()->Read(Now()); }

PeerTotals Communicator::ReadPeer(int peer) const { return setup_->monitor()->Read(peer, Now()); }

std::optional<bool> Communicator::StreamsSlots(int peer) const {
  const Endpoint* const endpoint = setup_->links().At(peer, 0);
  if (endpoint == nullptr || endpoint->limits().sends_user_memory) return std::nullopt;
  return endpoint->StreamsSlots();
}

uint64_t Communicator::Retransmits(int peer) const {
  uint64_t retransmits = 0;
  for (const auto& endpoint : setup_->links().all()) {
    if (peer < 0 || endpoint->peer() == peer) retransmits += endpoint->Retransmits();
  }
  return retransmits;
}

MemoryUse Communicator::Memory() const {
  MemoryUse use = fixed_memory_;
  for (const auto& endpoint : setup_->links().all()) use.peers_mapped += endpoint->Memory().mapped;
  use.work += dispatcher_.MessagesBytes();
  use.requests = requests_.MemoryBytes();
  return use;
}

MemoryUse Communicator::FixedMemory() const {
  MemoryUse use;
  for (const auto& endpoint : setup_->links().all()) {
    const LinkMemory link = endpoint->Memory();
    use.staging += link.staging;
    use.links += link.bookkeeping;
  }
  use.work = sizeof(Communicator) - sizeof(Engine) + dispatcher_.EngineBytes();
  return use;
}

RequestBudget Communicator::BudgetFor(const CallArguments& arguments) const {
  RequestBudget budget;
  budget.most = static_cast<size_t>(options().memory_bytes);
  if (budget.most == 0) return budget;
  const size_t ranks = static_cast<size_t>(nranks());
  budget.held_elsewhere = fixed_memory_.total() + dispatcher_.MessagesBytes();
  budget.wanted = sizeof(Request);
  if (HasVariableParts(arguments.kind)) budget.wanted += 4 * ranks * sizeof(size_t);
  // Fused, two calls of a group or more share a request and its chunks; the group has one as well.
  const size_t fused = ranks * (Segments::kSegmentBytes + sizeof(Part) / 2) + sizeof(Request*) + sizeof(Request) / 2;
  if (group_.is_open()) budget.wanted += (group_.size() + 1) * fused + sizeof(Request);
  return budget;
}

}  // namespace annulus
