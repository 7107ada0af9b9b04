#include "collectives/observe/telemetry.h"

#include "base/clock.h"

namespace annulus {

Status Telemetry::OpenTrace(const std::string& pattern, const TraceOwner& owner) {
  Status written = TraceFile::Create(pattern, owner, &trace_file_);
  monitor_.set_trace(trace_file_->trace());
  return written;
}

void Telemetry::ClaimBoard(const char* handed_down, int rank, int nranks) {
  board_ = BoardClaim::Acquire(handed_down, rank, nranks);
  if (board_ != nullptr) monitor_.set_board(board_->board());
}

void Telemetry::AddLink(int peer, int channel, const char* transport, const std::string& description) {
  monitor_.SetTransport(peer, transport);
  if (trace_file_ != nullptr) trace_file_->trace()->AddLink({peer, channel, transport, description, Now()});
}

}  // namespace annulus
