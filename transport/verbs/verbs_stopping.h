// VerbsStopping: how an end of a link stops so that another link can go on over its stream.
//
//  1. The queue pair fails, and the device gives back all that it has under way: what it has acknowledged has arrived.
//  2. The queue pair ends. From then on the device neither writes into slots nor reads what is to be sent, so the count
//     of what has arrived is final.
//  3. This end says the count. Its peer stops too, if it has not begun to, and says its own.
//
// Only the peer's word counts: a request that failed may have arrived, and one that did not may be lost with the peer's
// device.
//
// Threads: as the endpoint.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "transport/alarm.h"
#include "transport/verbs/verbs_connection.h"
#include "transport/verbs/verbs_stream.h"

namespace annulus {

class VerbsStopping {
 public:
  // `limit`: how long the peer's host may take to acknowledge this end's word.
  VerbsStopping(VerbsConnection* connection, Nanoseconds limit, Alarm::Executor executor)
      : connection_(connection), limit_(limit), alarm_(executor) {}

  // Both ends want it.
  void Allow() { allowed_ = true; }
  bool allowed() const { return allowed_; }
  // The link ends in another way.
  void Forbid() {
    allowed_ = false;
    state_ = State::kNo;
  }

  // `failure`: the ibv_wc_status of the request that failed, 0 if none; `why`: for people.
  void Begin(uint32_t failure, std::string why);
  bool begun() const { return state_ != State::kNo; }
  bool stopped() const { return state_ == State::kStopped; }
  const std::string& why() const { return why_; }

  enum class Result : uint8_t { kWaits, kMoved, kRefused, kGaveUp, kWrongCount };
  // Goes on. kRefused: the device does not end the queue pair, which is the connection's fault. kGaveUp: the peer's
  // host does not answer over the stream either. The end of the stream is for the caller.
  Result Step(VerbsStream* stream);
  // Prepares for sleep. Returns false when there is something to do.
  bool Arm(VerbsStream* stream);

 private:
  enum class State : uint8_t { kNo, kDraining, kTold, kStopped };

  VerbsConnection* const connection_;
  const Nanoseconds limit_;
  Alarm alarm_;
  bool allowed_ = false;
  State state_ = State::kNo;
  uint32_t failure_ = 0;
  std::string why_;
  Nanoseconds answered_ = 0;  // When the peer's host was last known to be there.
};

}  // namespace annulus
