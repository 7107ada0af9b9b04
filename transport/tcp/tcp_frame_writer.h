// TcpFrameWriter: makes the bytes of one stream of slices: a header in front of each, what is ready of its payload, and
// where in a frame the stream stands. It neither writes nor completes anything: a session does.
//
// Threads: those of the endpoint. Nothing allocates after construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/tcp/io_list.h"
#include "transport/transport.h"
#include "transport/wire/frame.h"

namespace annulus {

class TcpFrameWriter {
 public:
  // The most bytes that one write may carry. Writes of 256 KiB to 1 MiB measured best on loopback.
  static constexpr size_t kMaxWriteBytes = size_t{1} << 20;

  // `most_copied` bytes is the largest payload for AddCopy; 0: it is never called.
  TcpFrameWriter(bool checksum, uint32_t most_copied);

  // Whether `send` may come next: there is room, its header can be written, and nothing in front of it is unready.
  bool Takes(const Send& send) const {
    if (num_frames_ == kMaxFrames || has_copy() || (checksum_ && send.ready < send.bytes)) return false;
    return num_frames_ == 0 || FrameAt(num_frames_ - 1).sendable() == FrameAt(num_frames_ - 1).total();
  }
  // Puts a frame of `send` behind the others. Its bytes are read until TakeWritten() returns it.
  void Add(Send* send, uint64_t sequence);

  // The short way: a frame of a copy of `data`, while empty().
  void AddCopy(const Tag& tag, const std::byte* data, uint32_t bytes, uint64_t sequence);
  // Some of that frame is still to be written.
  bool has_copy() const { return copy_begin_ != copy_end_; }

  bool empty() const { return num_frames_ == 0 && !has_copy(); }
  // Of the sends in here, ready or not, headers included.
  size_t unwritten_bytes() const { return unwritten_bytes_; }
  bool HasReady() const {
    return has_copy() || (num_frames_ > 0 && frames_[first_frame_].written < frames_[first_frame_].sendable());
  }

  size_t copy_bytes() const { return copy_.size(); }

  // Adds what is ready to be written, in order.
  void List(IoList* list) const;
  // *bytes more were written: goes on to the end of a frame, and takes that off *bytes. Returns the send whose frame
  // was written whole, which leaves the writer; null when *bytes are used up.
  Send* TakeWritten(size_t* bytes);

 private:
  // The most frames in one write: of 16 KiB slices they make half a MiB, beyond which larger writes gain nothing.
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
  std::array<Frame, kMaxFrames> frames_;  // A ring, which starts at first_frame_.
  size_t first_frame_ = 0;
  size_t num_frames_ = 0;
  size_t unwritten_bytes_ = 0;
  std::vector<std::byte> copy_;  // Header and payload of the short way's frame. Of fixed size.
  size_t copy_begin_ = 0;        // What is unwritten of it begins here,
  size_t copy_end_ = 0;          // and ends here.
};

}  // namespace annulus
