#include "transport/tcp/session/tcp_frame_writer.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "transport/wire/crc32c.h"

namespace annulus {

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

void TcpFrameWriter::WriteFrame(const Tag& tag, const std::byte* data, uint32_t bytes, uint64_t sequence,
                                std::byte* to) const {
  WriteHeader(tag, data, bytes, sequence, to);
  if (bytes > 0) std::memcpy(to + kFrameHeaderBytes, data, bytes);
}

void TcpFrameWriter::WriteAsk(std::byte* to) {
  FrameHeader header;
  header.type = FrameType::kAsk;
  WriteFrameHeader(header, FrameBytes(to, kFrameHeaderBytes));
}

void TcpFrameWriter::BeginAgainFrom(size_t bytes) {
  if (num_frames_ == 0) return;
  Frame& frame = frames_[first_frame_];
  ANNULUS_CHECK(bytes <= frame.written);
  unwritten_bytes_ += frame.written - bytes;
  frame.written = bytes;
}

void TcpFrameWriter::List(IoList* list) const {
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
