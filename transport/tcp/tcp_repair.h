// TcpRepair: makes the broken connections of one link again. The end that dialled at the start dials, and the other
// one waits at its door. Over the new connection the ends tell each other what they have received, and the session goes
// on from there.
//
// The dialling end also looks after connections that are not broken but have fallen silent (TcpPulse), while its rank
// waits: it dials beside them. The old connection stays in use until the new one is proven; if it answers before the
// peer has been asked to let the new one in, nothing was the matter.
//
// It runs in the reactor, beside the link's other lanes; what it has prepared takes effect in Tend.
//
// Threads: those of the endpoint; the counters from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/alarm.h"
#include "transport/reactor.h"
#include "transport/tcp/repair/tcp_door.h"
#include "transport/tcp/repair/tcp_greeting.h"
#include "transport/tcp/repair/tcp_redial.h"
#include "transport/tcp/session/tcp_session.h"
#include "transport/tcp/socket/tcp_pulse.h"

namespace annulus {

struct TcpRepairConfig {
  Reactor* reactor = nullptr;
  int peer = 0;
  int channel = 0;
  int lanes = 0;
  bool same_host = false;
  Nanoseconds limit = 0;          // How long the dialling end may find no path.
  std::shared_ptr<TcpDoor> door;  // Where the peer dials; null: this end dials.
  TcpRedial::Plan dial;           // If it does, of lane 0.
};

class TcpRepair final : public TcpDoor::Link {
 public:
  // The session outlives it, or Stop comes first.
  TcpRepair(const TcpRepairConfig& config, TcpSession* session);
  TcpRepair(const TcpRepair&) = delete;
  TcpRepair& operator=(const TcpRepair&) = delete;
  ~TcpRepair() { Stop(); }

  // Takes note of what has broken, and takes new connections into use. Sets *moved when one was.
  // Errors: kProtocol  the streams do not fit together.
  Status Tend(bool* moved) { return busy_ || session_->AnyBroken() || (asks_ && *moved) ? TendLanes(moved) : Status(); }
  // Whether some lane has been broken for too long. From then on nothing is repaired.
  bool gave_up() const { return gave_up_; }
  // Asks for a wake-up when time is up. Returns false when there is something to do at once.
  bool Arm();
  // One end has ended the link. What is broken is still made again, but only within `limit` from now, and only until it
  // shows that the peer has no such link any more.
  void Conclude();
  // What Tend and Arm do, for a link that is closed and still has something to deliver.
  Status Deliver(bool* moved);
  // Whether some lane is without a connection that is in use.
  bool is_busy() const { return busy_; }
  // Nothing is repaired any more.
  void Stop();

  uint64_t reconnects() const { return reconnects_.load(std::memory_order_relaxed); }
  uint64_t bytes_sent_again() const { return bytes_sent_again_.load(std::memory_order_relaxed); }

  bool Expects(int lane, uint32_t connection) const override;
  void Welcome(int lane, uint32_t connection, SealedSocket socket) override;

 private:
  // A lane's repair.
  struct Work {
    std::optional<Nanoseconds> broken_since;  // No path since then, at the dialling end; nothing while there is one.
    bool active = false;
    uint32_t connection = 0;  // Number of the latest one.
    std::shared_ptr<TcpRedial> redial;
    std::shared_ptr<TcpGreeting> greeting;
    bool peer_is_gone = false;  // It ended the connection that was being made, in an orderly way.
    bool greeted = false;       // What the peer has received is known.
    uint64_t received = 0;
    TcpPulse pulse;
  };

  bool dials() const { return config_.door == nullptr; }
  Status TendLanes(bool* moved);
  Status TendLane(int lane, Nanoseconds now, bool* moved);
  bool Look();
  bool LookAt(int lane);
  void StopAsking();
  // Begins no other connection in place of the lane's.
  static void CallOff(Work* work);
  bool Concludes(int lane, Nanoseconds now);
  void Begin(int lane);
  void Dial(int lane);
  void Supersede(int lane);
  Status PutIntoUse(int lane, bool* moved);
  void Greet(int lane, SealedSocket socket);
  void OnGreeting(int lane, const Status& status, uint64_t received);

  const TcpRepairConfig config_;
  TcpSession* const session_;
  std::vector<Work> lanes_;
  Alarm alarm_;
  Alarm look_;
  bool asks_ = false;   // Some connection's kernel was told to ask for signs of life.
  bool busy_ = false;   // Some lane is active.
  bool moved_ = false;  // Something moved in the reactor.
  bool gave_up_ = false;
  std::optional<Deadline> concludes_by_;
  Status failure_;  // What the peer said that cannot be.
  std::atomic<uint64_t> reconnects_ = 0;
  std::atomic<uint64_t> bytes_sent_again_ = 0;
};

}  // namespace annulus
