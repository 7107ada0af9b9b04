// PipeWriter and PipeReader: the two directions of a link over a UNIX socket, with the slots of each.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "transport/memory/slot_memory.h"
#include "transport/transport.h"

namespace annulus {

// The slots of one direction.
class PipeSlots {
 public:
  PipeSlots(SlotMemory* memory, size_t slot_bytes, int slots);
  // Null when all are taken.
  std::byte* Lend();
  void Give(std::byte* slot) { free_.push_back(slot); }
  // What they take in memory.
  static size_t Bytes(size_t slot_bytes, int slots);

 private:
  ZeroedSlotBlock memory_;
  std::vector<std::byte*> free_;
};

// What precedes the data of a slice.
struct PipeHead {
  Tag tag;
  uint64_t bytes = 0;
};

class PipeWriter {
 public:
  explicit PipeWriter(const TransportConfig& config) : slots_(config.slot_memory, config.slot_bytes, config.slots) {}

  // Null when all slots are taken.
  std::byte* LendSlot() { return slots_.Lend(); }
  void Post(Send* send) { sends_.push_back(send); }

  // Writes what the socket accepts. Returns whether something changed.
  bool Write(int fd);
  // Whether there is something to write and the socket is not known to be full.
  bool has_work() const { return CanWrite() && !blocked_; }
  // Whether the socket was full at the last Write.
  bool blocked() const { return blocked_; }
  // Whether the peer is known to read no more.
  bool ended() const { return ended_; }
  bool has_sends() const { return !sends_.empty(); }

  // Completes everything that is posted.
  void FailAll(Code code);

 private:
  bool CanWrite() const { return !sends_.empty() && sends_.front()->ready == sends_.front()->bytes && !ended_; }

  PipeSlots slots_;
  std::deque<Send*> sends_;
  PipeHead head_;
  size_t sent_bytes_ = 0;  // Bytes of the first send that are sent, its head included.
  bool blocked_ = false;
  bool ended_ = false;  // The peer reads no more.
};

class PipeReader {
 public:
  PipeReader(const TransportConfig& config, int peer)
      : peer_(peer), limits_(config), slots_(config.slot_memory, config.slot_bytes, config.slots) {}

  // Returns false when too many receives are posted or held.
  bool Post(Recv* recv);
  void Release(Recv* recv);

  // Reads what has arrived. Sets *moved when something changed. Errors: kProtocol, kPeerLost.
  Status Read(int fd, bool* moved);
  // Whether the last Read found nothing more to do.
  bool quiet() const { return quiet_; }
  // Whether data is there that nobody wants yet.
  bool unwanted() const { return unwanted_; }

  // Completes everything that is posted.
  void FailAll(Code code);

 private:
  struct Bounds {
    explicit Bounds(const TransportConfig& config) : slot_bytes(config.slot_bytes), slots(config.slots) {}
    size_t slot_bytes;
    int slots;
  };

  // Reads up to `bytes`; how many came. 0: none for now (quiet_), or the stream has ended (ended_).
  size_t ReadSome(int fd, std::byte* to, size_t bytes, int flags);
  // Sets *complete once the first receive has its head. Errors: kProtocol.
  Status ReadHead(int fd, bool* complete);
  void FinishRecv();

  const int peer_;
  const Bounds limits_;
  PipeSlots slots_;
  std::deque<Recv*> recvs_;
  int held_slots_ = 0;  // Slots of receives that are posted, or completed and not released.
  PipeHead head_;
  size_t head_bytes_ = 0;  // Bytes of head_ that have arrived.
  bool quiet_ = false;     // The socket had nothing more, or data that nobody wants.
  bool unwanted_ = false;  // It had the latter.
  bool ended_ = false;
};

}  // namespace annulus
