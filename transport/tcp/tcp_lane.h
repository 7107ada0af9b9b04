// TcpLane: one socket of a TCP link. Writes frames of the sends that it takes, and reads frames into the receives that
// they belong to; it never blocks and never allocates.
//
// The end of the stream is no error here: the lane notes it, and the endpoint decides when nothing more can come.
//
// Threads: those of the endpoint; Retransmits from any.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "transport/address.h"
#include "transport/tcp/tcp_queues.h"
#include "transport/transport.h"
#include "transport/wire/frame.h"

namespace annulus {

class TcpLane {
 public:
  // `socket` is connected and non-blocking. `striped`: there are other lanes, so this one takes only what it can send
  // soon.
  TcpLane(StreamSocket socket, bool striped, bool checksum);

  // Writes what can be written now. A broken stream is noted, see failed_errno().
  void Transmit(SendQueue* queue, bool* moved);

  // Reads what is there, up to a bound that lets the engine work on data while the cache holds it.
  // Errors: kProtocol  what came is no valid frame.
  Status Receive(RecvQueue* queue, bool* moved);

  // What it holds.
  size_t memory_bytes() const { return sizeof(TcpLane) + buffer_.size() + short_frame_.size(); }

  // The short way (Endpoint::SendShort and so on), of a lane that is not striped: tcp_lane_short.cc. Frames are the
  // same.
  static constexpr uint32_t kMostShortBytes = 16 * 1024;
  // Sends a copy; what the socket does not take at once, Transmit or FlushShort sends on. False when others wait.
  bool SendShort(const Tag& tag, const std::byte* data, uint32_t bytes, SendQueue* queue);
  // Returns whether all that was sent the short way has left, or cannot.
  bool FlushShort();
  // Reads, at most once; from then on Receive leaves the socket alone until the slice is taken or a receive posted.
  bool PeekShort(RecvQueue* queue, Endpoint::ShortSlice* slice);
  void TakeShort(RecvQueue* queue);

  // Nothing more will be read: the peer closed, or the connection broke.
  bool read_ended() const { return read_ended_; }
  // Nothing more can be written.
  bool write_failed() const { return write_failed_; }
  // The first errno of this socket; 0 when the peer just closed.
  int failed_errno() const { return errno_; }
  // The stream ended within a frame.
  bool cut_short() const { return read_ended_ && (has_header_ || buffer_begin_ != buffer_end_); }
  // The next frame waits for its receive to be posted; until then the socket is not read.
  bool paused() const { return has_header_ && recv_ == nullptr && !short_awaited_; }

  // As Endpoint::Arm, for this socket.
  bool Arm(const SendQueue& sends, const RecvQueue& receives);

  // Tells the peer that nothing more comes.
  void ShutDownWrites();
  // Throws away what has come. Returns whether the peer has acknowledged all that was sent.
  bool Drain();
  void CloseSocket();

  const StreamSocket& socket() const { return socket_; }

  // As Endpoint::Retransmits, of this socket. Any thread.
  uint64_t Retransmits();

 private:
  // The most frames in one write: of 16 KiB slices they make half a MiB, beyond which larger writes gain nothing.
  static constexpr size_t kMaxFrames = 32;
  // Bytes read beyond a payload, so that small frames come several to a read. Of a large slice at most this much is
  // copied once more.
  static constexpr size_t kReadAheadBytes = 4096;

  struct OutFrame {
    Send* send = nullptr;
    size_t sent = 0;  // Of header and payload together.
    std::array<std::byte, kFrameHeaderBytes> header;
    size_t total() const { return kFrameHeaderBytes + send->bytes; }
    size_t sendable() const { return kFrameHeaderBytes + send->ready; }
  };
  // Shared with the handlers that the reactor still holds when the lane is gone.
  struct Armed {
    bool read = false;
    bool write = false;
  };

  OutFrame& FrameAt(size_t index) { return frames_[(first_frame_ + index) % kMaxFrames]; }
  const OutFrame& FrameAt(size_t index) const { return frames_[(first_frame_ + index) % kMaxFrames]; }
  bool CanTake(const SendQueue& queue) const;
  bool HasSendable() const;
  void TakeSends(SendQueue* queue);
  size_t GatherFrames(iovec* parts, int* count) const;
  void AccountSent(size_t bytes, SendQueue* queue, bool* moved);

  // Takes the next frame's header out of the buffer, unless has_header_; sets that once it was there whole.
  Status TakeHeader();
  Status ConsumeBuffer(RecvQueue* queue, bool* moved);
  Status CheckPayload() const;
  Status FinishFrame(RecvQueue* queue, bool* moved);
  void TakePayload(size_t bytes, bool* moved);
  bool ReadSome(size_t* budget, bool* moved);
  void NoteError(int error);
  Status FindShort(RecvQueue* queue, bool* found);
  void SendFailed(int error);

  StreamSocket socket_;
  const int fd_;
  const bool striped_;
  const bool checksum_;
  const std::shared_ptr<Armed> armed_;

  std::array<OutFrame, kMaxFrames> frames_;  // A ring.
  size_t first_frame_ = 0;
  size_t num_frames_ = 0;
  size_t unsent_bytes_ = 0;  // Of the frames in the ring, ready or not.
  bool write_blocked_ = false;

  std::vector<std::byte> buffer_;  // Of fixed size.
  size_t buffer_begin_ = 0;
  size_t buffer_end_ = 0;
  FrameHeader header_;
  bool has_header_ = false;
  Recv* recv_ = nullptr;  // Of header_, once it is posted.
  uint32_t got_ = 0;      // Of its payload.
  uint32_t crc_ = 0;      // Of what was got, if the frame carries a checksum.
  bool drained_ = false;  // The latest read took all there was.

  std::vector<std::byte> short_frame_;  // Of fixed size; empty without a short way.
  size_t short_begin_ = 0;              // Of short_frame_, what is still to be sent.
  size_t short_end_ = 0;
  bool short_awaited_ = false;  // Somebody peeks in vain,
  bool short_held_ = false;     // or has found a slice, which he has not taken yet.
  Status short_error_;          // Found while peeking.

  bool read_ended_ = false;
  bool write_failed_ = false;
  int errno_ = 0;

  std::mutex close_mutex_;  // The socket closes under it, so that another thread may ask an open one.
  bool closed_ = false;
  uint64_t retransmits_ = 0;  // When last asked.
};

inline Status TcpLane::TakeHeader() {  // Here, because each small call looks for a header or two.
  if (has_header_ || buffer_end_ - buffer_begin_ < kFrameHeaderBytes) return Status();
  const ConstFrameBytes bytes(buffer_.data() + buffer_begin_, kFrameHeaderBytes);
  ANNULUS_RETURN_IF_ERROR(ParseFrameHeader(bytes, &header_));
  buffer_begin_ += kFrameHeaderBytes;
  has_header_ = true;
  recv_ = nullptr;
  got_ = crc_ = 0;
  return Status();
}

}  // namespace annulus
