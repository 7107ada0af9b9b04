// Monitor: counts what a communicator does while it does it.
//
// Threads: Read from any; CountEnd from one at a time; everything else from the thread that drives. On the data path:
// it allocates nothing, locks nothing and reads no clock; times are passed in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "collectives/core/collective.h"
#include "collectives/observe/board.h"

namespace annulus {

class Trace;

// What passed between this rank and one other.
struct PeerTotals {
  const char* transport = "";  // "" when there is no link.
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t waited_ns = 0;  // For that peer.
};

struct Totals {
  uint64_t collectives = 0;
  uint64_t collectives_failed = 0;
  uint64_t messages = 0;
  uint64_t messages_failed = 0;
  uint64_t data_bytes = 0;
  uint64_t driven_ns = 0;  // What goes on now included.
  uint64_t waited_ns = 0;
  uint64_t sleeps = 0;
};

class Monitor {
 public:
  explicit Monitor(int nranks) : peers_(nranks) {}
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // Where events go; null: nowhere. Before anything moves; it outlives the monitor.
  void set_trace(Trace* trace) { trace_ = trace; }
  Trace* trace() const { return trace_; }

  // Where it is told what goes on; null: nowhere. Before anything moves; it outlives the monitor.
  void set_board(Board* board) { board_ = board; }
  Board* board() const { return board_; }

  // Before anything moves. `transport` is a literal.
  void SetTransport(int peer, const char* transport) { peers_[peer].transport = transport; }

  // From Begin to End, which ends a wait too, this rank's thread is busy with work of the communicator: with `call`, of
  // sequence 0 when it is messages. The end may be given as the time that it took.
  void BeginDrive(const Call& call, Nanoseconds now) {
    driving_since_.Set(static_cast<uint64_t>(now));
    if (board_ != nullptr) [[unlikely]]
      ShowBegin(call);
  }
  void EndDrive(Nanoseconds took) {
    driving_since_.Set(0);
    driven_ns_.Add(static_cast<uint64_t>(took));
    if (board_ != nullptr) [[unlikely]]
      ShowEnd();
  }

  // A drive that is over already.
  void CountDrive(const Call& call, Nanoseconds took) {
    driven_ns_.Add(static_cast<uint64_t>(took));
    if (board_ != nullptr) [[unlikely]]
      ShowCall(call);
  }

  // A collective or a message of the user's has ended; `data_bytes` were in its send buffer.
  void CountEnd(bool is_message, bool ok, size_t data_bytes) {
    ended_[is_message ? 1 : 0][ok ? 1 : 0].Add(1);
    data_bytes_.Add(data_bytes);
  }

  // Nothing has moved since `since`: it waits for `peer` (-1: for none in particular), up to EndWait.
  bool waiting() const { return waiting_since_.Get() != 0; }
  Nanoseconds waiting_since() const { return static_cast<Nanoseconds>(waiting_since_.Get()); }
  void BeginWait(Nanoseconds since, int peer);
  void EndWait(Nanoseconds now);
  // A wait that is over already.
  void AddWait(int peer, Nanoseconds took) {
    waited_ns_.Add(static_cast<uint64_t>(took));
    if (peer >= 0) peers_[peer].waited_ns.Add(static_cast<uint64_t>(took));
  }
  void CountSleep() { sleeps_.Add(1); }

  // A slice is through.
  void Sent(int peer, size_t bytes) { peers_[peer].sent_bytes.Add(bytes); }
  void Received(int peer, size_t bytes) { peers_[peer].received_bytes.Add(bytes); }

  Totals Read(Nanoseconds now) const;
  PeerTotals Read(int peer, Nanoseconds now) const;

 private:
  struct Peer {
    const char* transport = "";
    Counter sent_bytes;
    Counter received_bytes;
    Counter waited_ns;
  };

  void ShowBegin(const Call& call);
  void ShowCall(const Call& call);
  void ShowEnd();
  void ShowWait();

  Counter driving_since_;  // Of the monotonic clock; 0: nobody drives.
  Counter driven_ns_;      // Up to then.
  Counter waiting_since_;  // 0: it does not wait.
  Counter waiting_for_;    // The peer, plus 1; 0: for none in particular.
  Counter waited_ns_;      // Up to waiting_since_.
  Counter data_bytes_;
  Counter ended_[2][2];  // Collectives, messages; failed, well.
  Counter sleeps_;
  Trace* trace_ = nullptr;
  Board* board_ = nullptr;
  std::vector<Peer> peers_;
};

}  // namespace annulus
