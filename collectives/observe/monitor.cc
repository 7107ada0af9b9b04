#include "collectives/observe/monitor.h"

#include <algorithm>

namespace annulus {
namespace {

constexpr uint64_t kCallsPerSum = 16;

template <class Peers>
uint64_t MovedBytes(const Peers& peers) {
  uint64_t bytes = 0;
  for (const auto& peer : peers) bytes += peer.sent_bytes.Get() + peer.received_bytes.Get();
  return bytes;
}

// Time from `since` to `now`; 0 when `since` is 0.
uint64_t Lasted(const Counter& since, Nanoseconds now) {
  const Nanoseconds begin = static_cast<Nanoseconds>(since.Get());
  return begin == 0 || begin > now ? 0 : static_cast<uint64_t>(now - begin);
}

}  // namespace

void Monitor::BeginWait(Nanoseconds since, int peer) {
  waiting_for_.Set(static_cast<uint64_t>(peer + 1));
  waiting_since_.Set(static_cast<uint64_t>(since));
  if (board_ != nullptr) ShowWait();
}

void Monitor::EndWait(Nanoseconds now) {
  const Nanoseconds took = now - static_cast<Nanoseconds>(waiting_since_.Get());
  waiting_since_.Set(0);
  AddWait(static_cast<int>(waiting_for_.Get()) - 1, took);
  if (board_ != nullptr) ShowWait();
}

void Monitor::ShowCall(const Call& call) {
  board_->kind.Set(static_cast<uint64_t>(call.kind));
  board_->count.Set(call.count);
  board_->sequence.Set(call.sequence);
  // A rank that never waits shows what it moves here; adding up takes longer than a small call.
  if (call.sequence % kCallsPerSum == 0) board_->moved_bytes.Set(MovedBytes(peers_));
}

// The board keeps the latest collective.
void Monitor::ShowMessages() {
  if (++messages_shown_ % kCallsPerSum == 0) board_->moved_bytes.Set(MovedBytes(peers_));
}

void Monitor::ShowBegin(const Call& call) {
  if (call.sequence != 0) ShowCall(call);
  board_->inside.Set(call.sequence != 0 ? Board::kCollective : Board::kMessages);
}

void Monitor::ShowEnd() {
  board_->inside.Set(Board::kNothing);
  ShowWait();
}

void Monitor::ShowWait() {
  board_->moved_bytes.Set(MovedBytes(peers_));
  board_->waited_ns.Set(waited_ns_.Get());
  board_->waiting_for.Set(waiting_for_.Get());
  board_->waiting_since.Set(waiting_since_.Get());
}

Totals Monitor::Read(Nanoseconds now) const {
  Totals totals;
  totals.collectives = ended_[0][1].Get();
  totals.collectives_failed = ended_[0][0].Get();
  totals.messages = ended_[1][1].Get();
  totals.messages_failed = ended_[1][0].Get();
  totals.data_bytes = data_bytes_.Get();
  totals.driven_ns = driven_ns_.Get() + Lasted(driving_since_, now);
  // Both numbers are partly estimates.
  totals.waited_ns = std::min(totals.driven_ns, waited_ns_.Get() + Lasted(waiting_since_, now));
  totals.sleeps = sleeps_.Get();
  return totals;
}

PeerTotals Monitor::Read(int peer, Nanoseconds now) const {
  const Peer& counters = peers_[peer];
  PeerTotals totals;
  totals.transport = counters.transport;
  totals.sent_bytes = counters.sent_bytes.Get();
  totals.received_bytes = counters.received_bytes.Get();
  totals.waited_ns = counters.waited_ns.Get();
  if (waiting_for_.Get() == static_cast<uint64_t>(peer) + 1) totals.waited_ns += Lasted(waiting_since_, now);
  return totals;
}

}  // namespace annulus
