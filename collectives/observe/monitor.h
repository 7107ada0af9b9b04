// Monitor: counts the work of a communicator as it happens.
//
// Threads: Read from any; CountEnd from one at a time; everything else from the driving thread. The monitor is on the
// data path: it allocates nothing, locks nothing and reads no clock; times are passed in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "collectives/core/collective.h"
#include "collectives/observe/board.h"

namespace annulus {

class Trace;

// Counters for one other rank.
struct PeerTotals {
  const char* transport = "";  // "" when there is no link.
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t waited_ns = 0;  // Time spent waiting for that peer.
};

struct Totals {
  uint64_t collectives = 0;
  uint64_t collectives_failed = 0;
  uint64_t messages = 0;
  uint64_t messages_failed = 0;
  uint64_t data_bytes = 0;
  uint64_t driven_ns = 0;  // Includes the current drive.
  uint64_t waited_ns = 0;
  uint64_t sleeps = 0;
};

class Monitor {
 public:
  explicit Monitor(int nranks) : peers_(nranks) {}
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // Sets the trace that receives events; null: none. Called before anything moves; the trace outlives the monitor.
  void set_trace(Trace* trace) { trace_ = trace; }
  Trace* trace() const { return trace_; }

  // Sets the board that shows current work; null: none. Called before anything moves; the board outlives the monitor.
  void set_board(Board* board) { board_ = board; }
  Board* board() const { return board_; }

  // Called before anything moves. `transport` is a literal.
  void SetTransport(int peer, const char* transport) { peers_[peer].transport = transport; }

  // From Begin to End, this rank's thread is busy with the communicator's work: with `call`, whose sequence is 0 for
  // messages. End also ends a wait; it takes the duration of the drive.
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

  // Counts a drive that is already over.
  void CountDrive(const Call& call, Nanoseconds took) {
    driven_ns_.Add(static_cast<uint64_t>(took));
    if (board_ != nullptr) [[unlikely]]
      ShowCall(call);
  }

  // The same for messages.
  void CountMessagesDrive(Nanoseconds took) {
    driven_ns_.Add(static_cast<uint64_t>(took));
    if (board_ != nullptr) [[unlikely]]
      ShowMessages();
  }

  // Counts a collective or message of the user's that has ended; `data_bytes` were in its send buffer.
  void CountEnd(bool is_message, bool ok, size_t data_bytes, size_t calls = 1) {
    ended_[is_message ? 1 : 0][ok ? 1 : 0].Add(calls);
    data_bytes_.Add(data_bytes);
  }

  // A wait: nothing has moved since `since`, and this rank waits for `peer` (-1: none in particular) until EndWait.
  bool waiting() const { return waiting_since_.Get() != 0; }
  Nanoseconds waiting_since() const { return static_cast<Nanoseconds>(waiting_since_.Get()); }
  void BeginWait(Nanoseconds since, int peer);
  void EndWait(Nanoseconds now);
  // Counts a wait that is already over.
  void AddWait(int peer, Nanoseconds took) {
    waited_ns_.Add(static_cast<uint64_t>(took));
    if (peer >= 0) peers_[peer].waited_ns.Add(static_cast<uint64_t>(took));
  }
  void CountSleep() { sleeps_.Add(1); }

  // Count a slice that was sent or received.
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
  void ShowMessages();
  void ShowEnd();
  void ShowWait();

  Counter driving_since_;  // Time of the monotonic clock; 0: no thread drives.
  Counter driven_ns_;      // Total up to driving_since_.
  Counter waiting_since_;  // 0: not waiting.
  Counter waiting_for_;    // The peer plus 1; 0: none in particular.
  Counter waited_ns_;      // Total up to waiting_since_.
  Counter data_bytes_;
  Counter ended_[2][2];  // By collective or message, then by failed or successful.
  Counter sleeps_;
  Trace* trace_ = nullptr;
  Board* board_ = nullptr;
  std::vector<Peer> peers_;
  uint64_t messages_shown_ = 0;  // Drives of messages that were already over.
};

}  // namespace annulus
