// VerbsConnection: the part of a link that the device knows: memory, queue pair, sender and receiver, and what failed.
// It knows nothing of the stream beside it, nor of how a link ends.
//
// Threads: as the endpoint. Nothing allocates after Open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "transport/alarm.h"
#include "transport/memory/slot_memory.h"
#include "transport/verbs/device/verbs_hub.h"
#include "transport/verbs/device/verbs_memory.h"
#include "transport/verbs/device/verbs_regions.h"
#include "transport/verbs/verbs_queue_pair.h"
#include "transport/verbs/verbs_receiver.h"
#include "transport/verbs/verbs_returns.h"
#include "transport/verbs/verbs_sender.h"

namespace annulus {

struct VerbsConnectionConfig {
  int slots = 0;
  size_t slot_bytes = 0;
  uint32_t least_part = 0;  // As VerbsSender's.
  VerbsPath path;
  SlotMemory* slot_memory = nullptr;
  std::shared_ptr<VerbsRegions> regions;  // Those of the hub's device.
  // How long the stream may take to be of use when the link is to go on over it; 0: it never is.
  Nanoseconds continue_limit = 0;
};

class VerbsConnection final : private VerbsLink {
 public:
  VerbsConnection(std::shared_ptr<VerbsHub> hub, const VerbsConnectionConfig& config);
  ~VerbsConnection() { Destroy(); }
  VerbsConnection(const VerbsConnection&) = delete;
  VerbsConnection& operator=(const VerbsConnection&) = delete;

  // Registers memory, makes the queue pair and posts its receives. Errors: kOutOfMemory, kSystem.
  Status Open(VerbsGreeting* greeting);
  // Connects it to the peer. Errors: kSystem, kUnsupported.
  Status Connect(const VerbsGreeting& peer);

  // Memory of one such connection, in bytes.
  static size_t MemoryBytes(int slots, size_t slot_bytes);

  Alarm::Executor executor() { return hub_->executor(); }
  const VerbsDevice& device() const { return hub_->device(); }
  VerbsSender& sender() { return sender_; }
  const VerbsSender& sender() const { return sender_; }
  VerbsReceiver& receiver() { return receiver_; }
  const VerbsReceiver& receiver() const { return receiver_; }

  // Takes what has completed; fills receives, sends what can be sent, completes sends. `sends`: the peer is still
  // there. Returns whether a request changed.
  bool Move(bool sends);
  // Takes all that has completed by now.
  void PollAll();

  // Prepares for sleep: returns all credits, and makes the reactor return once something completes. Returns false when
  // there is something to do.
  bool Arm(bool sends);
  bool HasWork() const { return HasFault() || receiver_.HasWork() || sender_.HasWork(); }

  bool HasFault() const { return fault_.any() || hub_->failed(); }
  // Whether that is the peer's.
  bool PeerIsAtFault() const { return fault_.any() && fault_.os_errno == 0; }
  VerbsFault* fault() { return &fault_; }
  // Whether a request failed, so that nothing moves any more.
  bool Broken() const { return failure_.status != IBV_WC_SUCCESS; }
  // Whether a request failed and its cause is known. The cause may be reported after the requests flushed because of
  // it.
  bool CauseIsKnown() const;
  // Whether this end or its device is to blame for that, and not the peer.
  bool FailedHere() const { return failure_.here; }
  ibv_wc_status failure() const { return failure_.status; }
  // "the peer's device did not answer ...; port 1 went down".
  std::string FailureText() const;
  // The fault that `name`, of rank `peer`, caused, or that this rank's device has, for which no rank is to blame.
  Status FaultStatus(const std::string& name, int peer) const;

  // Lets the device give back what it has under way, what has arrived included, within a moment.
  void Drain();
  // Whether it has, or never will. Only after Drain, or once Broken.
  bool Drained() const { return receiver_.drained() || hub_->failed() || Now() >= failure_.drain_end; }
  // Stops the device, unless it refuses: it touches no memory of others any more, and completes nothing more. What came
  // stays.
  void Stop() { (void)pair_.Destroy(); }
  bool stopped() const { return !pair_.exists(); }
  // The same, and the counts of what has arrived stay as they are. Returns false, with a fault, when it refuses.
  bool StopForGood();
  // Ends it: the device touches no memory any more, and what is still to complete is dropped.
  void Destroy();

 private:
  void TakeCompletion(const ibv_wc& completion, bool is_receive, uint32_t value) override;
  // A request that failed.
  struct Failure {
    ibv_wc_status status = IBV_WC_SUCCESS;
    bool here = false;
    uint32_t vendor_error = 0;  // Code that the device's driver adds to the status.
    Deadline drain_end = 0;     // Until then the device has time to give back what it has under way.
  };

  // Returns what is due to be returned; `idle`: nothing else is there to do.
  void ReturnCredits(bool idle);
  // Copies what a sender has lent, if it has waited long enough. Returns whether it did.
  bool CopyLent();

  const std::shared_ptr<VerbsHub> hub_;
  const VerbsConnectionConfig config_;
  const uint32_t number_;  // At the hub.
  VerbsMemory written_;    // Slots that the peer writes.
  VerbsMemory local_;      // Slots to send from, headers of updates, cells.
  VerbsQueuePair pair_;
  VerbsReturns returns_;
  VerbsFault fault_;
  VerbsSender sender_;
  VerbsReceiver receiver_;
  Failure failure_;
  int idle_rounds_ = 0;
  Nanoseconds lent_since_ = 0;  // When the first send that could be copied was first seen to wait; 0: there is none.
  Alarm alarm_;
};

}  // namespace annulus
