// SimEndpoint: one end of a simulated link. Strict where real backends are lenient: if the code under test misuses the
// contract (a slot posted twice, an extra release, memory used after it was given back), it stops or poisons at once.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <string>

#include "transport/sim/sim_link.h"
#include "transport/sim/sim_pool.h"
#include "transport/transport.h"

namespace annulus {

class SimEndpoint final : public Endpoint {
 public:
  // `side` of `link`, which outlives it. Destroying it without Close() has the effect of a process's death on a link.
  SimEndpoint(SimLink* link, int side);
  ~SimEndpoint() override;

  const Limits& limits() const override { return link_->shape.limits; }
  int peer() const override { return link_->ranks[1 - side_]; }
  std::string Describe() const override;
  EndpointStats stats() const override { return {}; }

  Status AcquireSlot(size_t bytes, std::byte** slot) override;
  Status PostSend(Send* send) override;
  Status PostRecv(Recv* recv) override;
  void Release(Recv* recv) override;
  Status Progress(bool* moved) override;
  bool Arm() override { return !HasWork(); }
  bool Close() override;

  // The rank died: no request is touched any more, and the peer is notified.
  void Die();

 private:
  // First in, first out, linked through the requests' own `next`.
  template <class Request>
  struct Queue {
    Request* head = nullptr;
    Request* tail = nullptr;
    int count = 0;
    void Push(Request* request);
    Request* Pop();
  };

  bool HasWork() const;
  // Whether the peer's end of the link has arrived, behind slices that wait for receives, perhaps.
  bool PeerEnded() const { return !in_.inbox.empty() && in_.inbox.back().kind == SimPiece::Kind::kEnd; }
  // Whether that is so, no receive is posted, and no send that is posted can leave.
  bool LosesSends() const;
  Status LostStatus() const;
  // Bytes of the next piece that could be launched now; -1 for none.
  int64_t LaunchableBytes() const;
  void Launch(uint32_t bytes);
  void Depart(Send* send, uint32_t offset, uint32_t bytes, bool last);
  bool CompleteSends();
  bool ReceivePieces();
  void OnData(const SimPiece& piece);
  void End();
  void FailSends(Code code);
  void Fail(Status status);

  SimLink* const link_;
  const int side_;
  SimWire& out_;
  SimWire& in_;
  SimPool send_pool_;
  SimPool recv_pool_;
  Queue<Send> sends_;
  Queue<Recv> recvs_;
  Send* launching_ = nullptr;    // First send that has not been launched as a whole.
  uint32_t launched_bytes_ = 0;  // Launched bytes of launching_.
  int on_the_way_ = 0;           // Pieces that were launched and have not left yet.
  int departed_ = 0;             // Sends whose last byte has left and that are not completed yet.
  int slot_recvs_ = 0;           // Receives without landing that are posted or held.
  Status error_;
  bool ended_ = false;  // The peer has been notified, or is being notified.
};

}  // namespace annulus
