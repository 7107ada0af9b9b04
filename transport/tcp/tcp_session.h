// TcpSession: the two sequences of slices of a TCP link, one per direction, over the link's lanes. A lane is one socket
// with the framers of its two streams.
//
// Each slice goes whole over whichever lane can take it now; its number on the link brings it to the right receive. A
// send completes when the kernel has taken all of it, a receive when all of it is here, both in the order of their
// posts. Over a single lane there is a short path too.
//
// The end of a lane is no error here: the endpoint asks, and decides when nothing more can come.
//
// Threads: those of the endpoint; Retransmits from any. Moving data allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/address.h"
#include "transport/tcp/slot_pool.h"
#include "transport/tcp/tcp_frame_reader.h"
#include "transport/tcp/tcp_frame_writer.h"
#include "transport/tcp/tcp_queues.h"
#include "transport/tcp/tcp_socket.h"
#include "transport/transport.h"

namespace annulus {

struct TcpSessionConfig {
  size_t slot_bytes = 0;
  int slots = 0;  // Per direction.
  bool checksum = false;
};

class TcpSession {
 public:
  // Largest slice of the short path, in bytes.
  static constexpr uint32_t kMostShortBytes = 16 * 1024;

  // `sockets` are connected, authenticated and non-blocking, lane by lane.
  TcpSession(const TcpSessionConfig& config, std::vector<StreamSocket> sockets);

  // False when there was no memory for the slots.
  bool valid() const { return send_slots_.valid() && recv_slots_.valid(); }
  // Of several lanes, whichever is free takes the next slice; so there is no one place to look for it.
  bool has_short_path() const { return lanes_.size() == 1; }
  LinkMemory memory() const;
  uint64_t Retransmits() const;

  // Null when all are lent.
  std::byte* TakeSlot() { return send_slots_.Take(); }
  void Post(Send* send) { sends_.Post(send); }
  // False when it needs a slot and all are promised or held.
  bool Post(Recv* recv) { return receives_.Post(recv); }
  void Release(Recv* recv) { receives_.Release(recv); }

  // Writes what can be written now.
  void Transmit(bool* moved);
  // Reads what is there, up to a bound that lets the engine work on data while the cache holds it.
  // Errors: kProtocol  what came is no valid frame.
  Status Receive(bool* moved);
  // As Endpoint::Arm.
  bool Arm();

  // The short path, of a session that has one: as ShortPath says. SendCopy returns false when it would block.
  bool SendCopy(const Tag& tag, const std::byte* data, uint32_t bytes);
  bool FlushCopy();
  // Reads, at most once; from then on Receive leaves the socket alone until the slice is taken or a receive posted.
  // What is found to be broken is Receive's next error.
  bool Peek(ShortPath::Slice* slice);
  void Take();

  // Something can no longer be written, or nothing more will come, on some lane.
  bool AnyEnded() const;
  // Nothing can be written any more on the first lane.
  bool write_ended() const { return lanes_[0]->socket.write_ended(); }
  // No lane brings anything more, or none before receives are posted that nobody can be counted on to post.
  bool IsStuck() const;
  bool all_sent() const { return sends_.empty(); }
  // For messages: the first errno of a lane, 0 when the peer just closed; and whether a stream ended within a frame.
  int failed_errno() const;
  bool cut_short() const;

  // Tells the peer, on every lane, that nothing more comes.
  void ShutDownWrites();
  // Completes all that is posted. Only what concerns sockets may be called from then on.
  void FailAll(Code code);
  // Throws away what still comes. Returns whether the peer's kernel has all that was written.
  bool Drain();
  void CloseSockets();

 private:
  struct Lane {
    Lane(StreamSocket taken, bool checksum, uint32_t most_short)
        : socket(std::move(taken)), writer(checksum, most_short), reader(most_short) {}
    TcpSocket socket;
    TcpFrameWriter writer;
    TcpFrameReader reader;
  };
  // For whom the next frame is read.
  enum class Awaits : uint8_t {
    kReceive,  // A posted receive.
    kPeek,     // Somebody who peeks, in vain so far.
    kTake,     // Somebody who has seen it whole and not taken it yet.
  };

  bool MayTake(const Lane& lane) const;
  size_t WriteOnce(Lane* lane, bool* moved);
  void Transmit(Lane* lane, bool* moved);
  size_t ReadOnce(Lane* lane, size_t budget, bool* moved);
  Status TakeFrames(Lane* lane, bool* moved);
  Status Receive(Lane* lane, bool* moved);
  Status FindShort(Lane* lane, bool* found);
  bool Arm(Lane* lane);
  // The next frame of the lane waits for its receive to be posted; until then the socket is not read.
  bool IsPaused(const Lane& lane) const { return lane.reader.lacks_receive() && awaits_ != Awaits::kPeek; }

  SlotPool send_slots_;
  SlotPool recv_slots_;
  SendQueue sends_;
  RecvQueue receives_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Awaits awaits_ = Awaits::kReceive;
  Status peek_error_;
};

}  // namespace annulus
