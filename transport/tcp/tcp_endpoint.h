// TcpEndpoint: a link over one or more sockets, its lanes. Each slice goes whole over whichever lane can take it now;
// its number on the link brings it to the right receive.
//
// How a link ends. The peer's end of stream on any lane says that nothing more is to be gained by sending, so all lanes
// are half-closed, which makes a living peer close too; what has arrived is still delivered. The link fails when
// nothing that is posted can complete any more.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/address.h"
#include "transport/tcp/slot_pool.h"
#include "transport/tcp/tcp_lane.h"
#include "transport/tcp/tcp_queues.h"
#include "transport/transport.h"

namespace annulus {

struct TcpEndpointConfig {
  int peer = 0;
  size_t slot_bytes = 0;
  int slots = 0;
  bool checksum = false;
  std::string description;  // Interface and addresses, for messages.
};

class TcpEndpoint final : public Endpoint {
 public:
  // `sockets` are connected, authenticated and non-blocking, lane by lane.
  TcpEndpoint(const TcpEndpointConfig& config, std::vector<StreamSocket> sockets);

  // False when there was no memory for the slots.
  bool valid() const { return send_slots_.valid() && recv_slots_.valid(); }

  const Limits& limits() const override { return limits_; }
  int peer() const override { return config_.peer; }
  std::string Describe() const override { return "tcp " + config_.description; }
  LinkMemory Memory() const override;
  Status AcquireSlot(std::byte** slot) override;
  Status PostSend(Send* send) override;
  Status PostRecv(Recv* recv) override;
  void Release(Recv* recv) override;
  Status SendShort(const Tag& tag, const std::byte* data, uint32_t bytes) override;
  bool PeekShort(ShortSlice* slice) override { return status_.ok() && lanes_[0]->PeekShort(&receives_, slice); }
  void TakeShort() override { lanes_[0]->TakeShort(&receives_); }
  bool Flush() override { return lanes_[0]->FlushShort(); }
  Status Progress(bool* moved) override;
  bool Arm() override;
  uint64_t Retransmits() override;
  void PrepareClose() override;
  void Close() override;

 private:
  Status MoveData(bool* moved);
  bool IsOver();
  Status LostStatus() const;
  void Fail(Status status);
  void Linger();

  const TcpEndpointConfig config_;
  Limits limits_;
  SlotPool send_slots_;
  SlotPool recv_slots_;
  SendQueue sends_;
  RecvQueue receives_;
  std::vector<std::unique_ptr<TcpLane>> lanes_;
  Deadline linger_end_ = 0;  // Once PrepareClose() was called.
  bool ending_ = false;      // Some lane has ended or broken; all are half-closed.
  Status status_;            // The link's sticky error.
};

}  // namespace annulus
