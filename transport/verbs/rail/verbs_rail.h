// VerbsRail: one queue pair of a link, with the halves that send and receive over it, and how it failed.
//
// Threads: as the endpoint. Nothing allocates after Open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "transport/verbs/device/verbs_hub.h"
#include "transport/verbs/device/verbs_memory.h"
#include "transport/verbs/device/verbs_regions.h"
#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/rail/verbs_inbox.h"
#include "transport/verbs/rail/verbs_outbox.h"
#include "transport/verbs/rail/verbs_queue_pair.h"
#include "transport/verbs/rail/verbs_reads.h"
#include "transport/verbs/rail/verbs_returns.h"

namespace annulus {

class VerbsRail;

// A port of this rank, as all its links share it.
struct VerbsPort {
  std::shared_ptr<VerbsHub> hub;
  std::shared_ptr<VerbsRegions> regions;  // Those of all ports.
  size_t index = 0;                       // The port's, there.
};

// A request that failed, of any rail: the first one, or the first whose status is a cause.
struct VerbsFailure {
  ibv_wc_status status = IBV_WC_SUCCESS;
  bool here = false;          // This end or its device is to blame, and not the peer.
  uint32_t vendor_error = 0;  // Code that the device's driver adds to the status.
  const VerbsRail* rail = nullptr;
  Deadline drain_end = 0;     // Until then the devices have time to give back what they have under way.
  bool others_drain = false;  // The rails that have not failed do so as well.

  bool any() const { return status != IBV_WC_SUCCESS; }
};

// Time that a device has to complete all requests of a connection that broke. It takes none, unless the device is gone.
inline constexpr Nanoseconds kVerbsDraining = 500 * kMillisecond;

class VerbsRail final : private VerbsLink {
 public:
  // Local memory of a rail, in bytes: headers of requests, and cells.
  static size_t LocalBytes(int slots) { return VerbsOutbox::HeadersBytes(slots) + VerbsInbox::CellBytes(slots); }

  // `index`: in its link. `local`: LocalBytes(). The pointers outlive it.
  VerbsRail(uint32_t index, const VerbsPort& port, const VerbsPath& path, const VerbsInbox::Link& link,
            std::byte* local, VerbsFailure* failure);
  ~VerbsRail() { Destroy(); }
  VerbsRail(const VerbsRail&) = delete;
  VerbsRail& operator=(const VerbsRail&) = delete;

  // Registers the link's memory, `written` for the peer, makes the queue pair and posts its receives.
  // Errors: kOutOfMemory, kSystem.
  Status Open(VerbsMemory* written, VerbsMemory* local, VerbsRailGreeting* greeting);
  // Connects it to the peer. Errors: kSystem, kUnsupported.
  Status Connect(const VerbsRailGreeting& peer);

  VerbsHub& hub() { return *hub_; }
  const VerbsHub& hub() const { return *hub_; }
  VerbsOutbox& outbox() { return outbox_; }
  const VerbsOutbox& outbox() const { return outbox_; }
  VerbsInbox& inbox() { return inbox_; }
  const VerbsInbox& inbox() const { return inbox_; }
  // Whether the device may be able to write to [data, data + bytes) of registered memory.
  bool MayAcquire(const std::byte* data, size_t bytes) {
    return regions_->MayAcquire(outbox_.regions().bit(), data, bytes);
  }
  VerbsQueuePair& pair() { return pair_; }
  const VerbsQueuePair& pair() const { return pair_; }

  // Asks the peer's device whether it is there, unless that is under way: a failed request tells if it is not.
  // `address`: of the peer's slots.
  void KeepAlive(uint64_t address);
  bool keeps_alive() const { return keeps_alive_; }

  // Ends it: the device touches no memory any more, and what is still to complete is dropped.
  void Destroy() {
    (void)pair_.Destroy();
    Forget();
  }
  // What is still to complete is dropped.
  void Forget() { hub_->Remove(number_); }

 private:
  void OnCompletion(const ibv_wc& completion, VerbsRequest request, uint32_t value) override;

  const std::shared_ptr<VerbsHub> hub_;
  const std::shared_ptr<VerbsRegions> regions_;
  const uint32_t number_;  // At the hub.
  VerbsFailure* const failure_;
  VerbsReads* const reads_;
  VerbsFault* const fault_;
  uint32_t slots_key_ = 0;    // Local key of the slots that the peer writes.
  bool keeps_alive_ = false;  // A keepalive is under way.
  VerbsQueuePair pair_;
  VerbsOutbox outbox_;
  VerbsInbox inbox_;
};

}  // namespace annulus
