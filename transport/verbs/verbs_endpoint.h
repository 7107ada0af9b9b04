// VerbsEndpoint: a link over a reliable connection of an RDMA device. Sender and receiver move slices; the stream over
// which the link was set up tells when the peer is gone.
//
// How a link ends. The peer's farewell says how many of its messages have been acknowledged, and those are delivered
// first. It also says how many messages it has received, so that a send whose acknowledgement was lost with the peer is
// no failure. A request that fails breaks the connection; what had arrived before is delivered too.
//
// Threads: as transport/transport.h says of every Endpoint.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_hub.h"
#include "transport/verbs/verbs_memory.h"
#include "transport/verbs/verbs_queue_pair.h"
#include "transport/verbs/verbs_receiver.h"
#include "transport/verbs/verbs_returns.h"
#include "transport/verbs/verbs_sender.h"
#include "transport/verbs/verbs_stream.h"

namespace annulus {

struct VerbsEndpointConfig {
  int peer = 0;
  int slots = 0;
  size_t slot_bytes = 0;
  uint32_t least_part = 0;  // As VerbsSender's.
  VerbsPath path;
  SlotMemory* slot_memory = nullptr;
};

class VerbsEndpoint final : public Endpoint, private VerbsLink {
 public:
  VerbsEndpoint(std::shared_ptr<VerbsHub> hub, const VerbsEndpointConfig& config);
  ~VerbsEndpoint() override;

  // Registers memory, makes the queue pair and posts its receives. Errors: kOutOfMemory, kSystem.
  Status Open(VerbsGreeting* greeting);
  // Connects it to the peer. Errors: kSystem, kUnsupported, kMismatch.
  Status Connect(const VerbsGreeting& peer);
  // Takes over the stream; the link is up.
  void Attach(StreamSocket socket) { stream_.emplace(std::move(socket)); }

  // Memory of one such link, in bytes.
  static size_t MemoryBytes(int slots, size_t slot_bytes);

  const Limits& limits() const override { return limits_; }
  int peer() const override { return config_.peer; }
  std::string Describe() const override;
  EndpointStats stats() const override;
  Status AcquireSlot(std::byte** slot) override;
  Status PostSend(Send* send) override;
  Status PostRecv(Recv* recv) override;
  void Release(Recv* recv) override { receiver_.Release(recv); }
  Status Progress(bool* moved) override;
  bool Arm() override;
  bool Close() override;

 private:
  void TakeCompletion(const ibv_wc& completion, bool is_receive, uint32_t value) override;
  void ReadStream();
  // Returns what is due to be returned; `idle`: nothing else is there to do.
  void ReturnCredits(bool idle);
  bool PeerLeft() const { return stream_->ended(); }
  bool Broken() const { return failure_ != IBV_WC_SUCCESS; }
  bool CauseIsKnown() const;
  // Whether the link has ended and everything that arrived is delivered.
  bool IsOver() const;
  bool HasWork() const;
  Status FaultStatus() const;
  Status LostStatus() const;
  void End(Status status);
  void Leave(Code code);

  const std::shared_ptr<VerbsHub> hub_;
  const VerbsEndpointConfig config_;
  const uint32_t number_;  // At the hub.
  Limits limits_;
  VerbsMemory written_;  // Slots that the peer writes.
  VerbsMemory local_;    // Slots to send from, headers of updates, cells.
  VerbsQueuePair pair_;
  VerbsReturns returns_;
  VerbsFault fault_;
  VerbsSender sender_;
  VerbsReceiver receiver_;
  std::optional<VerbsStream> stream_;
  std::string peer_text_;
  ibv_wc_status failure_ = IBV_WC_SUCCESS;  // The failed request's.
  uint32_t vendor_error_ = 0;               // What the device's driver adds to that.
  Deadline settle_end_ = 0;                 // Set when a request fails.
  int idle_rounds_ = 0;
  bool closed_ = false;
  Deadline linger_end_ = 0;  // Set by the first Close().
  Status status_;            // The sticky error; OK while the link lives.
};

}  // namespace annulus
