// SimControlPath: the way between rank 0 and another rank, and the connections over it, in virtual time. What it loses
// is chosen by the number of the message at which it begins to lose it.
//
// Modelled after TCP: a reset loses what is under way; what a silent path loses is sent again after 0.2, 0.4, 0.8 s and
// so on; each end gives up a connection that carried nothing for 8 s; an end that is closed before all has arrived
// there resets the connection.
//
// Threads: one.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/control/control_session.h"
#include "transport/sim/sim_clock.h"

namespace annulus {

// What happens to a path, once.
struct SimCut {
  enum class Kind {
    kReset,
    kSilence,
    kForgotten,  // The connections that exist carry nothing any more; others do.
    kNoRoute,    // A silence in which attempts to connect fail at once.
    kGarbled,    // The message arrives as one that cannot be read.
  };

  int rank = 1;        // The path is that between rank 0 and this one.
  int message = 0;     // Where: counted from 0 over both directions and all connections, handshakes and ends included.
  bool after = false;  // Message `message` still arrives.
  Kind kind = Kind::kReset;
  // Length of a silence; kNoDeadline: for ever. For a reset: how much later the second end notices.
  Nanoseconds duration = 0;
  int first = 0;  // The end that notices a reset first; 0 is that of rank 0.
};

class SimControlLine;

class SimControlPath {
 public:
  SimControlPath(SimClock* clock, std::vector<SimCut> cuts) : clock_(clock), cuts_(std::move(cuts)) {}
  ~SimControlPath();

  std::shared_ptr<SimControlLine> Connect();
  // As a cut of this path does, now.
  void Cut(const SimCut& cut);
  // The process on that side ended.
  void CloseAll(int side);
  // It is stopped until then: its kernel goes on, and it hears what has arrived afterwards.
  void Pause(int side, Nanoseconds until) { awake_at_[side] = until; }
  Nanoseconds awake_at(int side) const { return awake_at_[side]; }
  SimClock& clock() { return *clock_; }
  bool silent() const { return clock_->now() < silent_until_; }
  bool has_route() const { return clock_->now() >= no_route_until_; }
  bool silent_for_ever() const { return silent_until_ == kNoDeadline; }
  int messages() const { return messages_; }
  int cuts_made() const { return cuts_made_; }
  Nanoseconds cut_at() const { return cut_at_; }  // When the first cut was made; kNoDeadline: never.

  // For lines: whether the next message is garbled.
  bool Garbles() const;
  // For lines: counts a message, and says that it has arrived. Both may cut.
  int Begin();
  void OnArrived(int message);

 private:
  void CutAt(int message, bool after);

  SimClock* const clock_;
  const std::vector<SimCut> cuts_;
  int messages_ = 0;
  int cuts_made_ = 0;
  Nanoseconds cut_at_ = kNoDeadline;
  Deadline silent_until_ = 0;
  Deadline no_route_until_ = 0;
  Nanoseconds awake_at_[2] = {0, 0};
  std::vector<std::weak_ptr<SimControlLine>> lines_;
};

// One connection. Sides: 0 is rank 0's, 1 the other rank's.
class SimControlLine : public std::enable_shared_from_this<SimControlLine> {
 public:
  using OnMessage = std::function<void(const EncodedMessage& message)>;
  using OnEnd = std::function<void(ControlEnd how)>;

  explicit SimControlLine(SimControlPath* path) : path_(path) {}

  // What has arrived and what will arrive is given to these functions, never within this call.
  void Listen(int side, OnMessage on_message, OnEnd on_end);
  void Send(int side, const EncodedMessage& message);
  // As Send, with `arrive` in place of what the other side listens with.
  void Pass(int side, std::function<void()> arrive);
  void Finish(int side);
  void Close(int side);
  // Closes that end by a reset.
  void Abandon(int side);
  bool open(int side) const { return ends_[side].open; }
  // Number of messages of that side that have not arrived.
  int unacknowledged(int side) const { return static_cast<int>(ends_[side].sent.size()); }

  // How long that side had heard nothing when it heard of its end.
  Nanoseconds silent_for(int side) const;

  // For the path.
  void Forget();
  void Reset(int first, Nanoseconds lag);
  // `forgotten`: for ever, whatever becomes of the path.
  void FallSilent(bool forgotten);

 private:
  bool silent() const { return forgotten_ || path_->silent(); }
  bool silent_for_ever() const { return forgotten_ || path_->silent_for_ever(); }
  struct End {
    bool open = true;                        // It has neither closed nor been told of an end.
    bool finished = false;                   // It sends nothing more.
    std::deque<std::function<void()>> sent;  // What its messages do when they arrive; oldest first.
    Nanoseconds last_arrival = 0;            // Arrival time of what it sent last.
    std::deque<EncodedMessage> early;        // Arrived before Listen.
    OnMessage on_message;                    // Null before Listen.
    OnEnd on_end;
    std::optional<ControlEnd> ended;  // How, if it was told.
    Nanoseconds ended_at = 0;
  };

  void Deliver(int from, Nanoseconds resend);
  void ProbeOnceHeard(int side);
  void Tell(int side, ControlEnd how, Nanoseconds wait);
  void TellNow(int side, ControlEnd how);
  void GiveOn(int side);

  SimControlPath* const path_;
  End ends_[2];
  bool broken_ = false;
  bool forgotten_ = false;
};

}  // namespace annulus
