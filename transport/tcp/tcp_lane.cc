#include "transport/tcp/tcp_lane.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "transport/tcp/tcp_socket.h"
#include "transport/wire/crc32c.h"

namespace annulus {
namespace {

// What one Progress() moves at most per lane and direction. Writes of 256 KiB to 1 MiB measured best on loopback; a
// read of more than half a MiB would push its first bytes out of the L2 cache before the engine reduces them.
constexpr size_t kMaxWriteBytes = size_t{1} << 20;
constexpr size_t kMaxReadBytes = size_t{512} << 10;

// A lane takes no more sends while it has this much unsent. Alone, it collects a full write; of several, each takes
// just enough for one large write, so that the next slice goes to whichever lane is free first.
constexpr size_t kPullBytesAlone = kMaxWriteBytes;
constexpr size_t kPullBytesStriped = size_t{256} << 10;

// Bounds one call of Drain against a peer that never stops sending.
constexpr int kMaxDrainReads = 256;

}  // namespace

TcpLane::TcpLane(StreamSocket socket, bool striped, bool checksum)
    : socket_(std::move(socket)),
      fd_(socket_.native_handle()),
      striped_(striped),
      checksum_(checksum),
      armed_(std::make_shared<Armed>()),
      buffer_(kReadAheadBytes + (striped ? 0 : kFrameHeaderBytes + kMostShortBytes)),
      short_frame_(striped ? 0 : kFrameHeaderBytes + kMostShortBytes) {}

// -- Sending
// ------------------------------------------------------------------------------------------------------------

// Whether the first untaken send may be taken. Nothing is taken behind a send that is not ready: another lane may have
// it.
bool TcpLane::CanTake(const SendQueue& queue) const {
  const Send* send = queue.untaken();
  if (send == nullptr || write_failed_ || num_frames_ == kMaxFrames || short_begin_ != short_end_) return false;
  if (unsent_bytes_ >= (striped_ ? kPullBytesStriped : kPullBytesAlone)) return false;
  if (striped_ && write_blocked_ && num_frames_ > 0) return false;
  if (checksum_ && send->ready < send->bytes) return false;
  if (num_frames_ == 0) return true;
  const OutFrame& last = FrameAt(num_frames_ - 1);
  return last.sendable() == last.total();
}

void TcpLane::TakeSends(SendQueue* queue) {
  while (CanTake(*queue)) {
    Send* send = queue->untaken();
    OutFrame& frame = FrameAt(num_frames_++);
    frame.send = send;
    frame.sent = 0;
    FrameHeader header;
    header.flags = checksum_ ? kFrameChecksummed : 0;
    header.bytes = send->bytes;
    header.payload_crc = checksum_ ? Crc32c({send->data, send->bytes}) : 0;
    header.sequence = queue->Take();
    header.tag = send->tag;
    WriteFrameHeader(header, frame.header);
    unsent_bytes_ += frame.total();
  }
}

bool TcpLane::HasSendable() const {
  if (num_frames_ == 0) return false;
  const OutFrame& first = FrameAt(0);
  return first.sent < first.sendable();
}

// Fills `parts`, room for two per frame, with what is ready. Returns how many bytes that is.
size_t TcpLane::GatherFrames(iovec* parts, int* count) const {
  size_t bytes = 0;
  *count = 0;
  for (size_t i = 0; i < num_frames_ && bytes < kMaxWriteBytes; ++i) {
    const OutFrame& frame = FrameAt(i);
    size_t payload_sent = 0;
    if (frame.sent < kFrameHeaderBytes) {
      const size_t rest = kFrameHeaderBytes - frame.sent;
      parts[(*count)++] = {const_cast<std::byte*>(frame.header.data()) + frame.sent, rest};
      bytes += rest;
    } else {
      payload_sent = frame.sent - kFrameHeaderBytes;
    }
    if (payload_sent < frame.send->ready) {
      const size_t rest = std::min(frame.send->ready - payload_sent, kMaxWriteBytes);
      parts[(*count)++] = {const_cast<std::byte*>(frame.send->data) + payload_sent, rest};
      bytes += rest;
    }
    if (payload_sent + kMaxWriteBytes < frame.send->bytes || frame.sendable() < frame.total()) break;
  }
  return bytes;
}

void TcpLane::AccountSent(size_t bytes, SendQueue* queue, bool* moved) {
  unsent_bytes_ -= bytes;
  while (num_frames_ > 0) {
    OutFrame& frame = FrameAt(0);
    const size_t taken = std::min(bytes, frame.sendable() - frame.sent);
    frame.sent += taken;
    bytes -= taken;
    if (frame.sent < frame.total()) break;
    first_frame_ = (first_frame_ + 1) % kMaxFrames;
    --num_frames_;
    queue->MarkDone(frame.send, moved);
  }
  ANNULUS_CHECK(bytes == 0);
}

void TcpLane::SendFailed(int error) {
  write_blocked_ = error == EAGAIN || error == EWOULDBLOCK;
  if (write_blocked_) return;
  write_failed_ = true;
  NoteError(error);
}

void TcpLane::Transmit(SendQueue* queue, bool* moved) {
  if (!FlushShort()) return;
  for (size_t total = 0; total < kMaxWriteBytes && !write_failed_;) {
    TakeSends(queue);
    std::array<iovec, 2 * kMaxFrames> parts;
    int count = 0;
    const size_t wanted = GatherFrames(parts.data(), &count);
    if (wanted == 0) return;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return SendFailed(errno);
    }
    AccountSent(static_cast<size_t>(sent), queue, moved);
    total += static_cast<size_t>(sent);
    write_blocked_ = static_cast<size_t>(sent) < wanted;
    if (write_blocked_) return;
  }
}

// -- Receiving
// ----------------------------------------------------------------------------------------------------------

Status TcpLane::Receive(RecvQueue* queue, bool* moved) {
  if (!short_error_.ok()) return short_error_;
  if (!queue->empty()) short_awaited_ = short_held_ = false;
  if (short_awaited_ || short_held_) return Status();
  drained_ = false;
  size_t budget = kMaxReadBytes;
  while (true) {
    ANNULUS_RETURN_IF_ERROR(ConsumeBuffer(queue, moved));
    if (paused() || read_ended_ || drained_ || budget == 0) return Status();
    if (!ReadSome(&budget, moved)) return Status();
  }
}

// Parses headers and moves payload out of the buffer until it is used up or the next frame's receive is not posted.
Status TcpLane::ConsumeBuffer(RecvQueue* queue, bool* moved) {
  while (true) {
    ANNULUS_RETURN_IF_ERROR(TakeHeader());
    if (!has_header_) return Status();
    if (recv_ == nullptr) {
      ANNULUS_RETURN_IF_ERROR(queue->Start(header_, &recv_));
      if (recv_ == nullptr) return Status();
      *moved = true;
    }
    const size_t now = std::min<size_t>(buffer_end_ - buffer_begin_, header_.bytes - got_);
    if (now > 0) {
      std::memcpy(recv_->data + got_, buffer_.data() + buffer_begin_, now);
      buffer_begin_ += now;
      TakePayload(now, moved);
    }
    if (got_ < header_.bytes) return Status();
    ANNULUS_RETURN_IF_ERROR(FinishFrame(queue, moved));
  }
}

void TcpLane::TakePayload(size_t bytes, bool* moved) {
  const bool checksummed = (header_.flags & kFrameChecksummed) != 0;
  if (checksummed) crc_ = ExtendCrc32c(crc_, {recv_->data + got_, bytes});
  got_ += static_cast<uint32_t>(bytes);
  if (checksummed) return;  // Nothing counts as arrived before it is verified.
  recv_->arrived = got_;
  *moved = true;
}

Status TcpLane::CheckPayload() const {
  if ((header_.flags & kFrameChecksummed) == 0 || crc_ == header_.payload_crc) return Status();
  return {Code::kProtocol, "broken frame: payload checksum of slice " + std::to_string(header_.sequence) +
                               " does not match its " + std::to_string(header_.bytes) + " bytes"};
}

Status TcpLane::FinishFrame(RecvQueue* queue, bool* moved) {
  ANNULUS_RETURN_IF_ERROR(CheckPayload());
  recv_->arrived = header_.bytes;
  *moved = true;
  queue->MarkDone(std::exchange(recv_, nullptr), moved);
  has_header_ = false;
  return Status();
}

// One read: the rest of the payload straight to where it belongs, and what follows into the buffer. False when nothing
// came.
bool TcpLane::ReadSome(size_t* budget, bool* moved) {
  std::array<iovec, 2> parts;
  int count = 0;
  const size_t rest = recv_ != nullptr ? header_.bytes - got_ : 0;
  const size_t direct = std::min(rest, *budget);
  if (direct > 0) parts[count++] = {recv_->data + got_, direct};
  std::memmove(buffer_.data(), buffer_.data() + buffer_begin_,
               buffer_end_ - buffer_begin_);  // Part of a header, if any.
  buffer_end_ -= std::exchange(buffer_begin_, 0);
  const size_t room = buffer_.size() - buffer_end_;
  const size_t ahead = direct < rest ? 0 : short_awaited_ ? room : std::min(room, kReadAheadBytes);
  if (ahead > 0) parts[count++] = {buffer_.data() + buffer_end_, ahead};
  const size_t wanted = direct + ahead;
  ANNULUS_CHECK(wanted > 0);  // Reading nothing would look like the end of the connection.

  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = static_cast<size_t>(count);
  ssize_t got = 0;
  do {
    // Of one part, which small slices are, the kernel need not copy a list.
    got = count == 1 ? recv(fd_, parts[0].iov_base, parts[0].iov_len, MSG_DONTWAIT)
                     : recvmsg(fd_, &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) {
    drained_ = true;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    read_ended_ = true;
    if (got < 0) NoteError(errno);
    return false;
  }
  const size_t bytes = static_cast<size_t>(got);
  drained_ = bytes < wanted;
  const size_t to_payload = std::min(bytes, direct);
  if (to_payload > 0) TakePayload(to_payload, moved);
  buffer_end_ += bytes - to_payload;
  *budget -= std::min(*budget, bytes);
  return true;
}

void TcpLane::NoteError(int error) {
  if (errno_ == 0) errno_ = error;
}

// -- Sleeping and closing
// -----------------------------------------------------------------------------------------------

bool TcpLane::Arm(const SendQueue& sends, const RecvQueue& receives) {
  const bool reads = !read_ended_ && !paused();
  if (paused() && receives.IsPosted(header_.sequence)) return false;
  if (reads && !drained_) return false;
  const bool writes = !write_failed_ && (HasSendable() || short_begin_ != short_end_);
  if ((writes && !write_blocked_) || CanTake(sends)) return false;
  if (reads && !armed_->read) {
    armed_->read = true;
    socket_.async_wait(StreamSocket::wait_read, [armed = armed_](const asio::error_code&) { armed->read = false; });
  }
  if (writes && !armed_->write) {
    armed_->write = true;
    socket_.async_wait(StreamSocket::wait_write, [armed = armed_](const asio::error_code&) { armed->write = false; });
  }
  return true;
}

void TcpLane::ShutDownWrites() {
  write_failed_ = true;
  shutdown(fd_, SHUT_WR);
}

bool TcpLane::Drain() {
  std::array<std::byte, 16384> waste;
  for (int reads = 0; !read_ended_ && reads < kMaxDrainReads; ++reads) {
    const ssize_t got = recv(fd_, waste.data(), waste.size(), MSG_DONTWAIT);
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    read_ended_ = true;
  }
  int unacknowledged = 0;
  return ioctl(fd_, SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0;
}

uint64_t TcpLane::Retransmits() {
  const std::lock_guard<std::mutex> lock(close_mutex_);
  if (!closed_) retransmits_ = RetransmitsOf(fd_, retransmits_);
  return retransmits_;
}

void TcpLane::CloseSocket() {
  Retransmits();  // The last look.
  const std::lock_guard<std::mutex> lock(close_mutex_);
  closed_ = true;
  asio::error_code ignored;
  socket_.close(ignored);
  read_ended_ = write_failed_ = true;
}

}  // namespace annulus
