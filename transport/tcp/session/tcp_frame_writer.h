// TcpFrameWriter: produces the bytes of one stream of slices. It puts a header in front of each slice, lists the ready
// part of its payload, and keeps the stream's position within a frame. It neither writes to a socket nor completes a
// send: a session does.
//
// Threads: those of the endpoint. Nothing allocates after construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/tcp/socket/io_list.h"
#include "transport/transport.h"
#include "transport/wire/frame.h"

namespace annulus {

class TcpFrameWriter {
 public:
  // Largest number of bytes that one write may carry. Writes of 256 KiB to 1 MiB measured best on loopback.
  static constexpr size_t kMaxWriteBytes = size_t{1} << 20;

  explicit TcpFrameWriter(bool checksum) : checksum_(checksum) {}

  // Whether `send` may come next: there is room, its header can be written, and everything before it is ready.
  bool MayAdd(const Send& send) const {
    if (num_frames_ == kMaxFrames || (checksum_ && send.ready < send.bytes)) return false;
    return num_frames_ == 0 || FrameAt(num_frames_ - 1).sendable() == FrameAt(num_frames_ - 1).total();
  }
  // Appends a frame for `send`. The send's data is read until TakeWritten() returns it.
  void Add(Send* send, uint64_t sequence);

  // Writes a frame that never enters the writer, for the short path: kFrameHeaderBytes and the payload.
  void WriteFrame(const Tag& tag, const std::byte* data, uint32_t bytes, uint64_t sequence, std::byte* to) const;
  // Likewise one that only asks for an acknowledgement: kFrameHeaderBytes.
  static void WriteAsk(std::byte* to);

  bool empty() const { return num_frames_ == 0; }
  size_t frames() const { return num_frames_; }
  // Written bytes of the first frame, of header and payload together.
  size_t begun_bytes() const { return num_frames_ == 0 ? 0 : frames_[first_frame_].written; }
  // Writes the first frame again from there, which is not beyond begun_bytes().
  void BeginAgainFrom(size_t bytes);

  // Unwritten bytes of the sends in here, ready or not, including headers.
  size_t unwritten_bytes() const { return unwritten_bytes_; }
  bool HasReady() const { return num_frames_ > 0 && frames_[first_frame_].written < frames_[first_frame_].sendable(); }

  // Lists what is ready to be written, in order.
  void List(IoList* list) const;
  // Records that *bytes more were written: advances to the end of a frame at most, and subtracts that from *bytes.
  // Returns the send whose frame is written whole, which leaves the writer; null when *bytes are used up.
  Send* TakeWritten(size_t* bytes);
  // The header of the frame that TakeWritten has just returned.
  const std::byte* taken_header() const { return frames_[(first_frame_ + kMaxFrames - 1) % kMaxFrames].header.data(); }

 private:
  // Largest number of frames in one write. With slices of 16 KiB they make half a MiB, and larger writes gain nothing.
  static constexpr size_t kMaxFrames = IoList::kMost / 2;

  struct Frame {
    Send* send = nullptr;
    size_t written = 0;  // Bytes of header and payload together.
    std::array<std::byte, kFrameHeaderBytes> header;
    size_t total() const { return kFrameHeaderBytes + send->bytes; }
    size_t sendable() const { return kFrameHeaderBytes + send->ready; }
  };

  const Frame& FrameAt(size_t index) const { return frames_[(first_frame_ + index) % kMaxFrames]; }
  void WriteHeader(const Tag& tag, const std::byte* data, uint32_t bytes, uint64_t sequence, std::byte* to) const;

  const bool checksum_;
  std::array<Frame, kMaxFrames> frames_;  // A ring that starts at first_frame_.
  size_t first_frame_ = 0;
  size_t num_frames_ = 0;
  size_t unwritten_bytes_ = 0;
};

}  // namespace annulus
