// SimEndpoint: one end of a simulated link. Strict where real backends are lenient: if the code under test misuses the
// contract (a slot posted twice, an extra release, memory used after it was given back), it stops or poisons at once.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "transport/sim/sim_link.h"
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

  Status AcquireSlot(std::byte** slot) override;
  Status PostSend(Send* send) override;
  Status PostRecv(Recv* recv) override;
  void Release(Recv* recv) override;
  Status Progress(bool* moved) override;
  bool Arm() override { return !HasWork(); }
  bool Close() override;

  // The rank died: no request is touched any more, and the peer is notified.
  void Die();

 private:
  // A fixed set of aligned buffers.
  class Pool {
   public:
    Pool(int slots, size_t slot_bytes);
    // Takes a random slot; null when there is none.
    std::byte* Take(SimClock* clock);
    // Fills the slot with poison, to expose readers that should not read it.
    void Give(int index);
    // The slot's index; -1 when `data` is not in a slot.
    int IndexOf(const std::byte* data) const;

   private:
    struct Delete {
      void operator()(std::byte* memory) const { operator delete (memory, std::align_val_t{64}); }
    };
    const size_t slot_bytes_;
    const size_t stride_;
    const int slots_;
    std::unique_ptr<std::byte, Delete> memory_;
    std::vector<int> free_;
  };
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
  // Bytes of the next piece that could be launched now; -1 for none.
  int64_t LaunchableBytes() const;
  void Launch(uint32_t bytes);
  void Depart(Send* send, uint32_t offset, uint32_t bytes, bool last);
  bool CompleteSends();
  bool TakePieces();
  void TakeData(const SimPiece& piece);
  void End();
  void Fail(Status status);

  SimLink* const link_;
  const int side_;
  SimWire& out_;
  SimWire& in_;
  Pool send_pool_;
  Pool recv_pool_;
  std::vector<bool> acquired_;       // By send slot: lent to the caller.
  std::vector<int> arrival_sender_;  // By receive slot: the sender's slot behind it; -1: none.
  std::vector<bool> held_;           // By receive slot: completed, not released.
  Queue<Send> sends_;
  Queue<Recv> recvs_;
  Send* launching_ = nullptr;    // First send that has not been launched as a whole.
  uint32_t launched_bytes_ = 0;  // Launched bytes of launching_.
  int departed_ = 0;             // Sends whose last byte has left and that are not completed yet.
  int slot_recvs_ = 0;           // Receives without landing that are posted or held.
  Status error_;
  bool ended_ = false;  // The peer has been notified, or is being notified.
};

}  // namespace annulus
