// ShmEndpoint: one end of a link through shared memory. shm_format.h is the format; ShmSender and ShmReceiver work the
// rings, ShmBell wakes the peer and notices its end.
//
// The bell for what a post or a release changed rings in the next Progress() or Arm(), not at once: by then the stores
// have left the processor, so that the fence costs little, and several changes share it.
//
// Threads: as transport/transport.h says of every Endpoint.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/rate_limit.h"
#include "transport/address.h"
#include "transport/shm/shm_bell.h"
#include "transport/shm/shm_distance.h"
#include "transport/shm/shm_receiver.h"
#include "transport/shm/shm_segment.h"
#include "transport/shm/shm_sender.h"
#include "transport/transport.h"

namespace annulus {

class ShmEndpoint final : public Endpoint, public ShortPath, public InPlace {
 public:
  // `socket` leads to the peer's end and belongs to the reactor that the owner sleeps in. Both ends may share a segment
  // object when they are in one process. `memory`, which outlives the endpoint, is what the peer may read in place.
  ShmEndpoint(std::shared_ptr<ShmSegment> segment, int rank, int peer, StreamSocket socket,
              SlotStores stores = SlotStores::kAuto, const MemoryRegistry* memory = nullptr);

  const Limits& limits() const override { return limits_; }
  int peer() const override { return peer_; }
  std::string Describe() const override;

  EndpointStats stats() const override;
  Shortcuts shortcuts() override { return {.short_path = this, .in_place = this}; }
  Status AcquireSlot(std::byte** slot) override;
  Status PostSend(Send* send) override;
  Status PostRecv(Recv* recv) override;
  void Release(Recv* recv) override;
  Status Progress(bool* moved) override;
  bool Arm() override;
  bool Close() override;

  Status SendCopy(const Tag& tag, const std::byte* data, uint32_t bytes) override;
  bool Peek(Slice* slice) override {
    awaits_short_ = !receiver_.HasSlice() || !receiver_.PeekShort(slice, &fault_);
    return !awaits_short_ && !ended_;
  }
  void Take() override {
    if (receiver_.TakeShort(&bell_due_)) sender_.PrepareNext();
  }
  bool Flush() override {
    RingIfDue();
    return true;
  }

  bool SendsFrom(const std::byte* data, size_t bytes) override { return !ended_ && sender_.TakesInPlace(data, bytes); }
  bool StreamsSlots() const override { return distance_.streams(); }

 private:
  // As the sender's Acquire; learns the peer's distance on the way.
  std::byte* AcquireProbing();
  void NoteMove();
  bool SendLongShort(const Tag& tag, const std::byte* data, uint32_t bytes);
  bool HasWork();
  void RingIfDue();
  // Returns whether there may be more to read.
  bool ReadSocket();
  // Whether a spinning owner should see whether the peer still lives.
  bool LookDue();
  // The peer is gone, and all that it sent has been delivered.
  bool Drained() const { return peer_gone_ && !receiver_.HasSlice(); }
  void End(Status status, Code farewell);
  Status Broken() const;
  Status Lost() const;
  std::string PeerText() const;

  const std::shared_ptr<ShmSegment> segment_;
  const int rank_;
  const int peer_;
  Limits limits_;
  ShmBell bell_;
  ShmOwnRegions own_regions_;
  ShmPeerRegions peer_regions_;
  ShmSender sender_;
  ShmDistance distance_;
  RateLimit move_notes_;
  ShmReceiver receiver_;
  const ShmEnd* const peer_end_;
  ShmEnd* const own_end_;
  bool bell_due_ = false;       // A ring was changed since the last look at whether the peer sleeps.
  bool awaits_short_ = false;   // Somebody peeks for a slice in vain,
  bool short_blocked_ = false;  // or wants to send one.
  bool peer_gone_ = false;
  bool ended_ = false;
  uint32_t idle_rounds_ = 0;
  Nanoseconds next_look_ = 0;
  ShmFault fault_;  // Found; the next Progress() breaks the link.
  Status status_;   // OK until ended_.
};

}  // namespace annulus
