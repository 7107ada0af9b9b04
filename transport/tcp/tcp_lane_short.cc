// TcpLane's short way: one system call sends a small frame, and one reads it, without requests and queues.
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "transport/tcp/tcp_lane.h"
#include "transport/wire/crc32c.h"

namespace annulus {

bool TcpLane::SendShort(const Tag& tag, const std::byte* data, uint32_t bytes, SendQueue* queue) {
  if (!queue->empty() || short_begin_ != short_end_) return false;
  FrameHeader header;
  header.flags = checksum_ ? kFrameChecksummed : 0;
  header.bytes = bytes;
  header.payload_crc = checksum_ ? Crc32c({data, bytes}) : 0;
  header.sequence = queue->TakeNumber();
  header.tag = tag;
  WriteFrameHeader(header, FrameBytes(short_frame_.data(), kFrameHeaderBytes));
  if (bytes > 0) std::memcpy(short_frame_.data() + kFrameHeaderBytes, data, bytes);
  short_begin_ = 0;
  short_end_ = kFrameHeaderBytes + bytes;
  FlushShort();
  return true;
}

bool TcpLane::FlushShort() {
  while (short_begin_ != short_end_ && !write_failed_) {
    const ssize_t sent =
        send(fd_, short_frame_.data() + short_begin_, short_end_ - short_begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      SendFailed(errno);
      return write_failed_;
    }
    short_begin_ += static_cast<size_t>(sent);
  }
  return true;
}

bool TcpLane::PeekShort(RecvQueue* queue, Endpoint::ShortSlice* slice) {
  if (!queue->empty() || !short_error_.ok()) return false;
  if (!short_held_) {
    bool found = false;
    short_error_ = FindShort(queue, &found);
    if (!found && short_error_.ok() && !read_ended_) {
      size_t budget = buffer_.size();
      bool moved = false;
      short_awaited_ = true;
      if (ReadSome(&budget, &moved)) short_error_ = FindShort(queue, &found);
    }
    if (!found) return false;
    short_awaited_ = false;
    short_held_ = true;
  }
  slice->tag = header_.tag;
  slice->bytes = header_.bytes;
  slice->data = header_.bytes <= kMostShortBytes ? buffer_.data() + buffer_begin_ : nullptr;
  return true;
}

// Whether the next frame is in the buffer, whole or too long for that.
Status TcpLane::FindShort(RecvQueue* queue, bool* found) {
  ANNULUS_RETURN_IF_ERROR(TakeHeader());
  if (!has_header_) return Status();
  ANNULUS_RETURN_IF_ERROR(queue->CheckSequence(header_.sequence));
  if (header_.bytes <= kMostShortBytes) {
    if (buffer_end_ - buffer_begin_ < header_.bytes) return Status();
    if ((header_.flags & kFrameChecksummed) != 0) {
      crc_ = Crc32c({buffer_.data() + buffer_begin_, header_.bytes});
      ANNULUS_RETURN_IF_ERROR(CheckPayload());
      crc_ = 0;
    }
  }
  *found = true;
  return Status();
}

void TcpLane::TakeShort(RecvQueue* queue) {
  buffer_begin_ += header_.bytes;
  has_header_ = short_held_ = false;
  queue->Skip();
}

}  // namespace annulus
