#include "transport/tcp/tcp_frame_writer.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "transport/wire/crc32c.h"

namespace annulus {

TcpFrameWriter::TcpFrameWriter(bool checksum, uint32_t most_copied)
    : checksum_(checksum), copy_(most_copied == 0 ? 0 : kFrameHeaderBytes + most_copied) {}

void TcpFrameWriter::WriteHeader(const Tag& tag, const std::byte* data, uint32_t bytes, uint64_t sequence,
                                 std::byte* to) const {
  FrameHeader header;
  header.flags = checksum_ ? kFrameChecksummed : 0;
  header.bytes = bytes;
  header.payload_crc = checksum_ ? Crc32c({data, bytes}) : 0;
  header.sequence = sequence;
  header.tag = tag;
  WriteFrameHeader(header, FrameBytes(to, kFrameHeaderBytes));
}

void TcpFrameWriter::Add(Send* send, uint64_t sequence) {
  Frame& frame = frames_[(first_frame_ + num_frames_++) % kMaxFrames];
  frame.send = send;
  frame.written = 0;
  WriteHeader(send->tag, send->data, send->bytes, sequence, frame.header.data());
  unwritten_bytes_ += frame.total();
}

void TcpFrameWriter::AddCopy(const Tag& tag, const std::byte* data, uint32_t bytes, uint64_t sequence) {
  ANNULUS_CHECK(empty() && kFrameHeaderBytes + bytes <= copy_.size());
  WriteHeader(tag, data, bytes, sequence, copy_.data());
  if (bytes > 0) std::memcpy(copy_.data() + kFrameHeaderBytes, data, bytes);
  copy_begin_ = 0;
  copy_end_ = kFrameHeaderBytes + bytes;
}

void TcpFrameWriter::List(IoList* list) const {
  if (has_copy()) return list->Add(copy_.data() + copy_begin_, copy_end_ - copy_begin_);
  for (size_t i = 0; i < num_frames_ && list->bytes() < kMaxWriteBytes; ++i) {
    const Frame& frame = FrameAt(i);
    if (frame.written < kFrameHeaderBytes) {
      list->Add(frame.header.data() + frame.written, kFrameHeaderBytes - frame.written);
    }
    const size_t begin = std::max(frame.written, kFrameHeaderBytes) - kFrameHeaderBytes;
    const size_t ready = frame.send->ready - begin;
    if (ready > 0) list->Add(frame.send->data + begin, std::min(ready, kMaxWriteBytes));
    // The next frame comes after all of this one.
    if (ready > kMaxWriteBytes || frame.sendable() < frame.total()) return;
  }
}

Send* TcpFrameWriter::TakeWritten(size_t* bytes) {
  if (has_copy()) {
    copy_begin_ += *bytes;
    *bytes = 0;
    return nullptr;
  }
  if (num_frames_ == 0) {
    ANNULUS_CHECK(*bytes == 0);
    return nullptr;
  }
  Frame& frame = frames_[first_frame_];
  const size_t taken = std::min(*bytes, frame.sendable() - frame.written);
  frame.written += taken;
  unwritten_bytes_ -= taken;
  *bytes -= taken;
  if (frame.written < frame.total()) {
    ANNULUS_CHECK(*bytes == 0);
    return nullptr;
  }
  first_frame_ = (first_frame_ + 1) % kMaxFrames;
  --num_frames_;
  return frame.send;
}

}  // namespace annulus
