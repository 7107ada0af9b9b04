// VerbsConnection: the part of a link that the devices know: memory, rails, sender and receiver, and what failed. When
// one rail fails, nothing is sent any more. It knows nothing of the stream beside it, nor of how a link ends.
//
// Threads: as the endpoint. Nothing allocates after Open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/alarm.h"
#include "transport/memory/slot_memory.h"
#include "transport/verbs/device/verbs_memory.h"
#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/rail/verbs_inbox.h"
#include "transport/verbs/rail/verbs_queue_pair.h"
#include "transport/verbs/rail/verbs_rail.h"
#include "transport/verbs/rail/verbs_reads.h"
#include "transport/verbs/rail/verbs_recv_slots.h"
#include "transport/verbs/rail/verbs_returns.h"
#include "transport/verbs/rail/verbs_target.h"
#include "transport/verbs/verbs_receiver.h"
#include "transport/verbs/verbs_sender.h"

namespace annulus {

struct VerbsConnectionConfig {
  int slots = 0;
  size_t slot_bytes = 0;
  uint32_t least_part = 0;  // As VerbsSender's.
  uint32_t least_read = 0;  // Smallest slice of registered memory that the peer reads, in bytes; 0: none is read.
  VerbsPath path;
  int rank = 0;  // For the log.
  SlotMemory* slot_memory = nullptr;
  // How long the stream may take to be of use when the link is to go on over it; 0: it never is.
  Nanoseconds continue_limit = 0;
};

class VerbsConnection {
 public:
  // A rail for each of `ports`, of which there is one at least.
  VerbsConnection(const std::vector<VerbsPort>& ports, const VerbsConnectionConfig& config);
  ~VerbsConnection() { Destroy(); }
  VerbsConnection(const VerbsConnection&) = delete;
  VerbsConnection& operator=(const VerbsConnection&) = delete;

  // Registers memory, makes the queue pairs and posts their receives. Errors: kOutOfMemory, kSystem.
  Status Open(VerbsGreeting* greeting);
  // Connects them to the peer's, of which there are as many. Errors: kSystem, kUnsupported.
  Status Connect(const VerbsGreeting& peer);

  // Memory of one such connection, in bytes.
  static size_t MemoryBytes(int slots, size_t slot_bytes, size_t rails);

  Alarm::Executor executor() { return rails_[0]->hub().executor(); }
  size_t num_rails() const { return rails_.size(); }
  const VerbsDevice& device(size_t rail) const { return rails_[rail]->hub().device(); }
  VerbsSender& sender() { return sender_; }
  const VerbsSender& sender() const { return sender_; }
  VerbsReceiver& receiver() { return receiver_; }
  const VerbsReceiver& receiver() const { return receiver_; }
  const VerbsReads& reads() const { return reads_; }
  // What has passed over a rail, for the log.
  std::string CountsText(size_t rail) const;
  // Whether slices may land in [data, data + bytes), by READs.
  bool MayLand(const std::byte* data, size_t bytes);
  // Lets the sender keep what it sends.
  void Keep() { sender_.Keep(); }
  // Whether slices may be sent from memory of GPUs, and read into it.
  bool MayReachGpus() const { return rails_[0]->outbox().regions().all->may_use_gpus(); }
  // As VerbsRegions does.
  std::string GpusText() const { return rails_[0]->outbox().regions().all->GpusText(); }
  // What the farewell says of each rail, and what the peer's said.
  void FillFarewell(VerbsFarewell* farewell) const;
  void OnFarewell(const VerbsFarewell& farewell);
  // Whether all that the farewell promised has arrived.
  bool HasArrived(const VerbsFarewell& farewell) const;

  // Takes what has completed; fills receives, sends what can be sent, completes sends. `sends`: the peer is still
  // there. Returns whether a request changed.
  bool Move(bool sends);
  // Takes all that has completed by now.
  void PollAll();

  // Prepares for sleep: returns all credits, and makes the reactor return once something completes. Returns false when
  // there is something to do.
  bool Arm(bool sends);
  bool HasWork(bool sends) const {
    return HasFault() || receiver_.HasWork() || sender_.HasWork() || (sends && !Broken() && receiver_.CanRead());
  }

  bool HasFault() const { return fault_.any() || FailedRail() != nullptr; }
  // Whether that is the peer's.
  bool PeerIsAtFault() const { return fault_.any() && fault_.os_errno == 0; }
  VerbsFault* fault() { return &fault_; }
  // Whether a request failed, so that nothing moves any more.
  bool Broken() const { return failure_.any(); }
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

  // Lets the devices give back what they have under way, what has arrived included, within a moment.
  void Drain();
  // The same for the rails that have not failed, once Broken: they would wait for messages for ever.
  void DrainOthers();
  // Whether they have, or never will.
  bool Drained() const;
  // Whether the device may be writing to memory of others, so that it has to stop before that is given back.
  bool WritesOwnersMemory() const { return reads_.writes_landings() && !stopped(); }
  // Stops the devices, unless one refuses: they touch no memory of others any more, and complete nothing more. What
  // came stays.
  void Stop();
  bool stopped() const;
  // The same, and the counts of what has arrived stay as they are. Returns false, with a fault, when one refuses.
  bool StopForGood();
  // Ends it: the devices touch no memory any more, and what is still to complete is dropped.
  void Destroy();

 private:
  // Something that is to be done once it has waited for a time.
  struct Wait {
    explicit Wait(Alarm::Executor executor) : alarm(std::move(executor)) {}

    // Whether it has waited for `limit`; then its time begins anew.
    bool IsOver(bool waits, Nanoseconds limit);

    Nanoseconds since = 0;  // When it was first seen to wait; 0: it does not.
    Alarm alarm;            // For a rank that sleeps.
  };

  // The rail whose device, or its queue, has failed; null: none has.
  const VerbsRail* FailedRail() const {
    for (const auto& rail : rails_) {
      if (rail->hub().failed()) return rail.get();
    }
    return nullptr;
  }
  std::vector<std::unique_ptr<VerbsRail>> MakeRails(const std::vector<VerbsPort>& ports);
  std::vector<VerbsOutbox*> Outboxes() const;
  std::vector<VerbsInbox*> Inboxes() const;
  // Posts the receives that have come back. Before the peer is told of them.
  void PostReceives();
  // Returns what is due to be returned; `idle`: nothing else is there to do.
  void ReturnCredits(bool idle);
  // "mlx5_0, port 1, ... and mlx5_1, ...": those that may have failed.
  std::string DevicesText() const;
  std::string TroubleText() const;
  // Whether both ends read slices on all rails, in one direction: from the peer, or the peer from here.
  bool AllRead() const;
  bool AllAnswer() const;
  // Copies what a sender has lent, if it has waited long enough. Returns whether it did.
  bool CopyLent();
  // Asks the peer's devices whether they are there, if slices wait for its word and nothing has changed for a while.
  void KeepAlive(bool changed);

  const VerbsConnectionConfig config_;
  VerbsMemory written_;  // Slots that the peer writes.
  VerbsMemory local_;    // Slots to send from; headers and cells of each rail.
  VerbsFault fault_;
  VerbsFailure failure_;
  VerbsReturns returns_;
  VerbsTarget target_;
  VerbsRecvSlots recv_slots_;
  VerbsReads reads_;
  std::vector<std::unique_ptr<VerbsRail>> rails_;
  VerbsSender sender_;
  VerbsReceiver receiver_;
  int idle_rounds_ = 0;
  Wait lent_;     // Wait of the first send that could be copied.
  Wait unheard_;  // Wait for the peer's word, where slices lack nothing else.
};

}  // namespace annulus
