#include "transport/tcp/session/tcp_frame_reader.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "transport/wire/crc32c.h"

namespace annulus {

TcpFrameReader::TcpFrameReader(uint32_t most_whole)
    : buffer_(kReadAheadBytes + (most_whole == 0 ? 0 : kFrameHeaderBytes + most_whole)) {}

void TcpFrameReader::MovePayload(bool* moved) {
  const size_t bytes = std::min(end_ - begin_, missing());
  if (bytes == 0) return;
  std::memcpy(recv_->data + got_, buffer_.data() + begin_, bytes);
  begin_ += bytes;
  OnArrived(bytes, moved);
}

void TcpFrameReader::OnArrived(size_t bytes, bool* moved) {
  if (checksummed()) crc_ = ExtendCrc32c(crc_, {recv_->data + got_, bytes});
  got_ += static_cast<uint32_t>(bytes);
  if (checksummed()) return;  // Nothing counts as arrived until it is verified.
  recv_->arrived = got_;
  *moved = true;
}

Status TcpFrameReader::CheckPayload(uint32_t crc) const {
  if (!checksummed() || crc == header_.payload_crc) return Status();
  return {Code::kProtocol, "broken frame: payload checksum of slice " + std::to_string(header_.sequence) +
                               " does not match its " + std::to_string(header_.bytes) + " bytes"};
}

Status TcpFrameReader::Finish(Recv** recv) {
  ANNULUS_RETURN_IF_ERROR(CheckPayload(crc_));
  recv_->arrived = header_.bytes;
  *recv = std::exchange(recv_, nullptr);
  has_header_ = false;
  return Status();
}

void TcpFrameReader::ListRoom(size_t budget, bool whole, IoList* list) {
  const size_t direct = std::min(missing(), budget);
  if (direct > 0) list->Add(recv_->data + got_, direct);
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);  // At most part of a header.
  end_ -= std::exchange(begin_, 0);
  if (direct < missing()) return;
  const size_t room = buffer_.size() - end_;
  const size_t ahead = whole ? room : std::min(room, kReadAheadBytes);
  if (ahead > 0) list->Add(buffer_.data() + end_, ahead);
}

void TcpFrameReader::Fill(size_t bytes, bool* moved) {
  const size_t direct = std::min(bytes, missing());
  if (direct > 0) OnArrived(direct, moved);
  end_ += bytes - direct;
}

Status TcpFrameReader::FindPayload(bool* found) {
  if (end_ - begin_ < header_.bytes) return Status();
  if (checksummed()) ANNULUS_RETURN_IF_ERROR(CheckPayload(Crc32c({payload(), header_.bytes})));
  *found = true;
  return Status();
}

}  // namespace annulus
