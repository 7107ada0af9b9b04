// Communicator's counters and trace.
#include "base/log.h"
#include "collectives/comm/communicator.h"

namespace annulus {

void Communicator::CountEnd(const CallArguments& arguments, Code code) {
  if (arguments.kind == CollectiveKind::kNone) return;  // A group's own request.
  const size_t data_bytes = code == Code::kOk ? SendBytes(arguments, rank(), nranks()) : 0;
  setup_->monitor()->CountEnd(IsMessage(arguments.kind), code == Code::kOk, data_bytes);
}

void Communicator::WriteTrace() {
  TraceFile* const file = setup_->trace_file();
  if (file == nullptr) return;
  const Status written = file->Write(TraceFile::kFailureEvents);
  if (!written.ok()) Log(LogLevel::kWarn, rank(), "%s", written.message().c_str());
}

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

}  // namespace annulus
