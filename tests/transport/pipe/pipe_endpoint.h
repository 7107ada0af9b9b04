// PipeEndpoint: one end of a link that carries slices over a UNIX socket, one after the other, through slots.
//
// A slice is its tag, its length and its data. It is sent when all of it is ready, and read when a receive is posted.
//
// Threads: those of the contract.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "transport/address.h"
#include "transport/memory/slot_memory.h"
#include "transport/transport.h"

namespace annulus {

// The slots of one direction.
class PipeSlots {
 public:
  PipeSlots(SlotMemory* memory, size_t slot_bytes, int slots);
  // Null when all are taken.
  std::byte* Take();
  void Give(std::byte* slot) { free_.push_back(slot); }
  // What they take in memory.
  static size_t Bytes(size_t slot_bytes, int slots);

 private:
  ZeroedSlotBlock memory_;
  std::vector<std::byte*> free_;
};

class PipeEndpoint final : public Endpoint {
 public:
  // `socket` is connected, authenticated and non-blocking.
  PipeEndpoint(const TransportConfig& config, int peer, StreamSocket socket);

  const Limits& limits() const override { return limits_; }
  int peer() const override { return peer_; }
  std::string Describe() const override { return "pipe to rank " + std::to_string(peer_); }
  EndpointStats stats() const override;
  Status AcquireSlot(std::byte** slot) override;
  Status PostSend(Send* send) override;
  Status PostRecv(Recv* recv) override;
  void Release(Recv* recv) override;
  Status Progress(bool* moved) override;
  bool Arm() override;
  bool Close() override;

 private:
  // What precedes the data of a slice.
  struct Head {
    Tag tag;
    uint64_t bytes = 0;
  };
  // Whether handlers of the reactor, which may outlive the endpoint, wait for the socket.
  struct Armed {
    bool read = false;
    bool write = false;
  };

  bool CanWrite() const { return !sends_.empty() && sends_.front()->ready == sends_.front()->bytes && !write_ended_; }
  bool Write();
  bool Read();
  // Reads up to `bytes`; how many came. 0: none for now (quiet_), or the stream has ended (read_ended_).
  size_t ReadSome(std::byte* to, size_t bytes, int flags);
  bool ReadHead();
  void FinishRecv();
  void Fail(Status status);

  const int peer_;
  const Limits limits_;
  const size_t memory_bytes_;
  StreamSocket socket_;
  PipeSlots send_slots_;
  PipeSlots recv_slots_;
  std::shared_ptr<Armed> armed_ = std::make_shared<Armed>();
  std::deque<Send*> sends_;
  std::deque<Recv*> recvs_;
  int held_slots_ = 0;  // Of receives that are posted, or completed and not released.
  Head out_head_;
  size_t sent_bytes_ = 0;  // Of the first send, its head included.
  bool write_blocked_ = false;
  bool write_ended_ = false;
  Head in_head_;
  size_t head_bytes_ = 0;  // Of in_head_, as far as it has come.
  bool quiet_ = false;     // The socket had nothing more, or data that nobody wants.
  bool unwanted_ = false;  // It had the latter.
  bool read_ended_ = false;
  Status status_;
};

}  // namespace annulus
