// VerbsChain: requests on their way to the device, as one chain per call, and which of them it has completed.
//
// Only the last request of a chain asks for a completion, and that one only if somebody waits for it or the send queue
// would fill up: those before it are done when it is.
//
// Threads: as the endpoint. Nothing allocates after construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/rail/verbs_queue_pair.h"
#include "transport/verbs/rail/verbs_returns.h"

namespace annulus {

// Memory of this process that a request reads, and its local key.
struct VerbsPiece {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint32_t key = 0;
};

class VerbsChain {
 public:
  // `depth`: room of the send queue. The pointers outlive it.
  VerbsChain(uint32_t depth, VerbsQueuePair* pair, VerbsFault* fault) : depth_(depth), pair_(pair), fault_(fault) {}

  // How many more requests the device takes.
  uint32_t Room() const { return depth_ - (posted_ - completed_); }

  // Adds a request that sends `first` and behind it `second`; either may be empty. They must stay until it is
  // completed, unless the request carries them itself.
  ibv_send_wr* Add(ibv_wr_opcode opcode, VerbsImmediate immediate, const VerbsPiece& first,
                   const VerbsPiece& second = {});
  // Asks for a completion of what has been added.
  void AskForCompletion() { waits_ = true; }
  bool is_full() const { return chained_ == kMost; }
  // Whether what was added keeps the device busy for a while.
  bool is_heavy() const { return chained_bytes_ >= kHeavyBytes; }
  // Hands what was added to the device.
  void Post() {
    if (chained_ == 0) return;
    if (const int error = HandOver(); error != 0) fault_->Set("posting requests", 0, error);
  }

  // The queue pair has failed: hands over a request that the device gives back behind all others, unless the last one
  // asked for a completion. Otherwise nothing tells that those which were carried out before are over.
  void PostMarker();

  // Whether requests were handed over whose completion nobody has asked for.
  bool has_unsignaled() const { return unsignaled_ > 0; }

  // The device has completed the requests up to `value`.
  void OnCompletion(uint32_t value);
  // The device has failed or flushed the request `value`. Marks `value`, and all before it, as finished.
  void OnFailure(uint32_t value) { finished_ = completed_ + ((value - completed_) & VerbsHub::kMostValue); }

  // Requests that were added; requests that are completed. Both modulo 2^32.
  uint32_t posted() const { return posted_; }
  uint32_t completed() const { return completed_; }
  // Whether the device will report on no further request.
  bool finished() const { return finished_ == posted_ || completed_ == posted_; }

 private:
  static constexpr int kMost = 16;

  // Bytes that take a card of 400 Gbit/s 1.3 us, much longer than it takes to hand it another chain.
  static constexpr size_t kHeavyBytes = 64 * 1024;

  // Returns 0 or the errno.
  int HandOver();

  const uint32_t depth_;
  VerbsQueuePair* const pair_;
  VerbsFault* const fault_;
  uint32_t posted_ = 0;
  uint32_t completed_ = 0;
  // Requests known to have failed, been flushed, or preceded such a request.
  uint32_t finished_ = 0;
  uint32_t unsignaled_ = 0;  // Requests since the last one that asked for a completion.
  std::array<ibv_send_wr, kMost> requests_;
  std::array<std::array<ibv_sge, 2>, kMost> pieces_;
  int chained_ = 0;
  size_t chained_bytes_ = 0;  // Data of the requests in the chain.
  bool waits_ = false;
};

}  // namespace annulus
