// TcpSession: the two sequences of slices of a TCP link, one per direction, over the link's lanes. A lane is one socket
// with the framers of its two streams.
//
// Each slice travels whole, over whichever lane can take it now. Its sequence number on the link leads it to the right
// receive. A send completes when the kernel has taken all of it, a receive when all of it has arrived, both in the
// order of their posts. A session with a single lane also has a short path.
//
// A session that retains keeps what it has sent until the peer's kernel has it (TcpRetained). A large send then
// completes when the peer's kernel has all of it. If the link has nothing else to do, it is copied instead where that
// is worth it: the rest of a transfer, or on a long path, so that more can be sent.
//
// The end of a lane is not an error here: the endpoint asks, and decides when nothing more can come.
//
// Threads: those of the endpoint; Retransmits from any thread. Moving data allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/address.h"
#include "transport/alarm.h"
#include "transport/tcp/session/slot_pool.h"
#include "transport/tcp/session/tcp_frame_reader.h"
#include "transport/tcp/session/tcp_frame_writer.h"
#include "transport/tcp/session/tcp_queues.h"
#include "transport/tcp/session/tcp_retained.h"
#include "transport/tcp/socket/tcp_socket.h"
#include "transport/transport.h"

namespace annulus {

struct TcpSessionConfig {
  size_t slot_bytes = 0;
  int slots = 0;  // Per direction.
  bool checksum = false;
  SlotMemory* slot_memory = nullptr;
  bool retains = false;    // What was sent is kept until the peer's kernel has it.
  bool long_path = false;  // That takes long, so more has to be under way than sends that wait for it.
  bool lands = true;       // As RecvQueue's.
};

class TcpSession {
 public:
  // Largest slice of the short path, in bytes.
  static constexpr uint32_t kMostShortBytes = 16 * 1024;

  // `sockets` are connected, authenticated and non-blocking, one per lane.
  TcpSession(const TcpSessionConfig& config, std::vector<SealedSocket> sockets);

  // False when the slots could not be allocated.
  bool valid() const { return send_slots_.valid() && recv_slots_.valid(); }
  // With several lanes, whichever is free takes the next slice, so there is no single place to look for it.
  bool has_short_path() const { return lanes_.size() == 1; }
  LinkMemory memory() const;
  uint64_t Retransmits() const;

  // Null when all slots are lent.
  std::byte* LendSlot() { return send_slots_.Lend(); }
  void Post(Send* send) { sends_.Post(send); }
  // Returns false when `recv` needs a slot and all slots are promised or held.
  bool Post(Recv* recv) { return receives_.Post(recv); }
  void Release(Recv* recv) { receives_.Release(recv); }

  // Writes what can be written now.
  void Transmit(bool* moved);
  // Reads what has arrived, up to a bound that lets the engine work on data while it is in the cache.
  // Errors: kProtocol  the bytes are not a valid frame.
  Status Receive(bool* moved);
  // Like Endpoint::Arm.
  bool Arm();

  // The short path, if the session has one, as ShortPath specifies. SendCopy returns false when it would block.
  bool SendCopy(const Tag& tag, const std::byte* data, uint32_t bytes);
  bool FlushCopy();
  // Reads at most once. From then on Receive does not read the socket until the slice is taken or a receive is posted.
  // An error found here is Receive's next error.
  bool Peek(ShortPath::Slice* slice);
  void Pop();

  // Whether some lane can no longer write, or will receive nothing more. Not those that may be resumed, if `resumes`.
  bool AnyEnded(bool resumes) const;
  // Whether the first lane cannot write any more.
  bool write_ended() const { return lanes_[0]->socket.write_ended(); }

  // Whether the lane's connection broke. Another one may take its place.
  bool IsBroken(int lane) const { return lanes_[static_cast<size_t>(lane)]->socket.broken(); }
  bool AnyBroken() const {
    for (const auto& lane : lanes_) {
      if (lane->socket.broken()) return true;
    }
    return false;
  }
  // Whether the peer has ended the lane.
  bool has_ended(int lane) const {
    return !is_suspended(lane) && lanes_[static_cast<size_t>(lane)]->socket.read_ended();
  }
  // Whether the lane is broken, or frozen.
  bool is_suspended(int lane) const { return IsSuspended(*lanes_[static_cast<size_t>(lane)]); }
  // The lane's connection.
  int fd(int lane) const { return lanes_[static_cast<size_t>(lane)]->socket.fd(); }
  // Bytes of the lane's two streams that were written or read.
  uint64_t carried(int lane) const {
    return lanes_[static_cast<size_t>(lane)]->received + lanes_[static_cast<size_t>(lane)]->position();
  }
  // Has the peer's kernel acknowledge something on the lane, where everything was written. Returns how many bytes that
  // took; 0 when nothing can be written in between, or not now.
  size_t Ask(int lane);
  // Whether somebody waits for a slice.
  bool awaits_slice() const { return !receives_.empty() || awaits_ == Awaits::kPeek; }
  // The peer is asked for another connection of the lane, which is still in use.
  void ExpectAnother(int lane) { lanes_[static_cast<size_t>(lane)]->socket.ExpectAnother(); }
  bool expects_another(int lane) const { return lanes_[static_cast<size_t>(lane)]->socket.expects_another(); }
  // Ends the lane's connection. Returns the number of bytes of the incoming stream that have arrived.
  uint64_t Freeze(int lane);
  // Goes on over another connection; the lane is frozen. The peer has received that many bytes of the outgoing stream.
  // *again is how many are sent again: none after ShutDownWrites, which holds for this connection too.
  // Errors: kProtocol  these bytes are not kept, or were never sent.
  Status Resume(int lane, SealedSocket socket, uint64_t received, uint64_t* again, bool* moved);
  // Nothing will be resumed any more.
  void GiveUpResuming();
  // Whether no lane can deliver anything more, or none can before receives are posted that nobody can be relied on to
  // post.
  bool IsStuck() const;
  // Whether some send is not complete.
  bool has_sends() const { return !sends_.empty(); }
  // Whether the kernel has taken all that was posted.
  bool all_sent() const;
  // For error messages: the first errno of any lane; 0 when the peer just closed.
  int failed_errno() const;
  // For error messages: whether a stream ended within a frame.
  bool cut_short() const;

  // Tells the peer on every lane that nothing more will come, also on those that are resumed later.
  void ShutDownWrites();
  // For a link that ends: completes the sends that the kernel has taken, and keeps nothing for later.
  void StopRetaining(bool* moved);
  // Completes everything that is posted with `code`. After this, only functions that concern sockets may be called.
  void FailAll(Code code);
  // Discards input that still arrives.
  void DiscardInput();
  // Whether there is nothing left to wait for: the peer's kernel has everything that was written, or the peer has ended
  // its direction.
  bool Drained() const;
  void CloseSockets();

  // What a session that retains, has no sends any more and leaves may owe to the peer's kernel.
  enum class Debt : uint8_t { kNothing, kEnd, kData };
  // Writes what is left to be written, and then the end, on the lanes that have connections.
  void WriteEnd();
  // Looks what is still owed: some data, or only that this was the end, or a connection that could say so.
  Debt FindDebt();

 private:
  struct Lane {
    Lane(SealedSocket taken, const TcpSessionConfig& config, int lanes, uint32_t most_short)
        : socket(std::move(taken)),
          writer(config.checksum),
          retained(config.retains
                       ? TcpRetained(TcpRetained::RoomFor(config.slot_bytes, config.slots, lanes, most_short))
                       : TcpRetained(most_short)),
          reader(most_short) {}
    // Position in the outgoing stream of the next byte to write.
    uint64_t position() const {
      return retained.has_unwritten() ? retained.next() : retained.end() + writer.begun_bytes();
    }
    TcpSocket socket;
    TcpFrameWriter writer;
    TcpRetained retained;
    TcpFrameReader reader;
    uint64_t received = 0;  // Bytes of the incoming stream that were read.
    // Positions in the outgoing stream of the latest frames that ask and have nothing in between.
    uint64_t asks_begin = 0;
    uint64_t asks_end = 0;
  };
  // Who waits for the next frame.
  enum class Awaits : uint8_t {
    kReceive,  // A posted receive.
    kPeek,     // A caller whose Peek has found nothing yet.
    kPop,      // A caller that has seen the frame whole and not taken it yet.
  };

  bool HasRoom(const Lane& lane) const;
  static bool IsSuspended(const Lane& lane) { return lane.socket.broken() || lane.socket.frozen(); }
  bool MayTake(const Lane& lane) const;
  bool WantsConfirmation(const Lane& lane, size_t short_bytes) const;
  void Confirm(Lane* lane, bool* moved);
  bool CopiesLent(const Lane& lane) const;
  void CopyLent(bool* moved);
  bool ArmConfirmation(Lane* lane);
  static Debt FindDebt(Lane* lane);
  size_t WriteOnce(Lane* lane, bool* moved);
  void OnWritten(Lane* lane, size_t written, bool* moved);
  void Transmit(Lane* lane, bool* moved);
  size_t ReadOnce(Lane* lane, size_t budget, bool* moved);
  Status ReadFrames(Lane* lane, bool* moved);
  Status Receive(Lane* lane, bool* moved);
  Status FindShort(Lane* lane, bool* found);
  bool Arm(Lane* lane);
  // Whether the next frame of the lane waits for its receive to be posted; until then the socket is not read.
  bool IsPaused(const Lane& lane) const { return lane.reader.lacks_receive() && awaits_ != Awaits::kPeek; }

  const bool is_sealed_;  // Also after a lane has got another socket.
  SlotPool send_slots_;
  SlotPool recv_slots_;
  SendQueue sends_;
  RecvQueue receives_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Alarm alarm_;
  const bool long_path_;
  bool has_shut_down_ = false;  // Nothing is written any more.
  int idle_polls_ = 0;          // Calls of Transmit since something moved.
  Nanoseconds idle_since_ = 0;  // Valid after kIdlePolls of them.
  Awaits awaits_ = Awaits::kReceive;
  Status peek_error_;
};

}  // namespace annulus
