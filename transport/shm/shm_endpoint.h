// ShmEndpoint: one end of a link through shared memory. shm_format.h defines the format; ShmSender and ShmReceiver
// operate the rings; ShmBell wakes the peer and detects its death.
//
// A post or a release does not ring the bell at once. The next Progress() or Arm() does.
//
// Threads: as transport/transport.h says of every Endpoint.
#pragma once

#include <memory>
#include <string>

#include "transport/shm/shm_bell.h"
#include "transport/shm/shm_lender.h"
#include "transport/shm/shm_mapping.h"
#include "transport/shm/shm_own_devices.h"
#include "transport/shm/shm_peer_devices.h"
#include "transport/shm/shm_peer_memory.h"
#include "transport/shm/shm_receiver.h"
#include "transport/shm/shm_sender.h"
#include "transport/stream_socket.h"
#include "transport/transport.h"

namespace annulus {

class ShmEndpoint final : public Endpoint, public ShortPath, public InPlace {
 public:
  // `socket` is connected to the peer's end and belongs to the reactor that the owner sleeps in. Both ends may share a
  // mapping when they are in one process. `memory` is what the peer may read in place; it outlives the endpoint.
  // `copies`: whether the ends may copy from the memory of each other's process; either end decides for both.
  // `devices`: whether their devices may read each other's memory; likewise. What devices there are, the mapping's slot
  // memory knows.
  ShmEndpoint(std::shared_ptr<ShmMapping> mapping, int rank, int peer, StreamSocket socket,
              SlotStores stores = SlotStores::kAuto, const MemoryRegistry* memory = nullptr,
              KernelCopies copies = KernelCopies::kAuto, DeviceReads devices = DeviceReads::kAuto);

  // This process has links to so many peers, at least 1, whose slots go through one cache.
  void ShareCache(size_t peers);

  const Limits& limits() const override { return limits_; }
  int peer() const override { return peer_; }
  std::string Describe() const override;

  EndpointStats stats() const override;
  Shortcuts shortcuts() override { return {.short_path = this, .in_place = this}; }
  Status AcquireSlot(size_t bytes, std::byte** slot) override;
  Status PostSend(Send* send) override;
  Status PostRecv(Recv* recv) override;
  void Release(Recv* recv) override;
  Status Progress(bool* moved) override;
  bool Arm() override;
  bool Close() override;

  Status SendCopy(const Tag& tag, const std::byte* data, uint32_t bytes) override;
  bool Peek(Slice* slice) override {
    short_.awaits = !receiver_.HasSlice() || !receiver_.PeekShort(slice, &fault_);
    return !short_.awaits && status_.ok();
  }
  void Pop() override {
    bool told = false;
    receiver_.PopShort(&told);
    sender_.PrepareNext();
    bell_.Owe(told);
  }
  bool PopInto(std::byte* to) override;
  bool Flush() override {
    RingIfOwed();
    return true;
  }

  bool SendsFrom(const std::byte* data, size_t bytes) override {
    return status_.ok() && sender_.AcceptsInPlace(data, bytes);
  }
  bool Lends(const std::byte* data, size_t bytes) override;
  bool MayLend() const override;
  void Withdraw() override { sender_.Withdraw(); }
  bool MayLand(const std::byte*, size_t bytes) override {
    return bytes >= ShmSender::kLeastLent && peer_memory_.works();
  }
  bool StreamsSlots() const override { return lender_.streams(); }

 private:
  bool SendLongShort(const Tag& tag, const std::byte* data, uint32_t bytes);
  void RingIfOwed() {
    if (bell_.RingIfOwed()) [[unlikely]]
      sender_.HurryLoans();
  }
  bool HasWork();
  const DeviceExports* ExportsFor(DeviceReads devices) const;
  bool OnDeviceNotice(const ShmNotice& notice, const SharedDeviceMemory* shared);
  // Reads notices and bells. Returns whether there may be more to read.
  bool ReadSocket();
  // Whether the peer is gone and everything that it sent has been delivered.
  bool Drained() const { return peer_gone_ && (!receiver_.HasSlice() || receiver_.AwaitsLoan()); }
  // Whether the peer is gone and will not take what is posted, while something that it sent still waits for a receive.
  bool HasLostSends() const { return peer_gone_ && receiver_.idle() && !sender_.idle(); }
  Status ProgressWithoutPeer(bool* moved);
  ShmEnd* own_end() const { return mapping_->end(rank_ < peer_ ? 0 : 1); }
  ShmEnd* peer_end() const { return mapping_->end(rank_ < peer_ ? 1 : 0); }
  void End(Status status, Code farewell);
  void FailSends(Code code, Code farewell);
  Status Broken() const;
  Status Lost() const;
  std::string PeerText() const;

  const std::shared_ptr<ShmMapping> mapping_;
  const int rank_;
  const int peer_;
  Limits limits_;
  ShmBell bell_;
  // What one end reads where the other has written it.
  struct {
    ShmOwnRegions own_regions;
    ShmOwnDevices own_devices;
    ShmPeerDevices peer_devices;
    ShmPeerRegions peer_regions;
  } memory_;
  ShmPeerMemory peer_memory_;
  ShmSender sender_;
  ShmLender lender_;
  ShmReceiver receiver_;
  struct {
    bool awaits = false;      // The last Peek found no slice, and no receive was posted since.
    bool is_blocked = false;  // A short send found no room, and nothing was posted since.
  } short_;
  bool peer_gone_ = false;
  ShmFault fault_;  // A fault that was found; the next Progress() breaks the link.
  Status status_;   // The sticky error; OK while the link lives.
};

}  // namespace annulus
