// TcpFrameReader: finds the frames in the bytes of one stream. It parses headers, passes payload to the receive that it
// belongs to, verifies checksums, and keeps the stream's position within a frame. It neither reads from a socket nor
// completes a receive: a session does.
//
// Threads: those of the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/tcp/socket/io_list.h"
#include "transport/transport.h"
#include "transport/wire/frame.h"

namespace annulus {

class TcpFrameReader {
 public:
  // Payloads of up to `most_whole` bytes can be taken whole from the buffer, without a receive; 0: none.
  explicit TcpFrameReader(uint32_t most_whole);

  // Parses the next slice's header if it has arrived whole and is not parsed yet. Errors: kProtocol.
  Status ReadHeader() {  // Inline, because each small call looks for a header or two.
    while (!has_header_ && end_ - begin_ >= kFrameHeaderBytes) {
      ANNULUS_RETURN_IF_ERROR(ParseFrameHeader(ConstFrameBytes(buffer_.data() + begin_, kFrameHeaderBytes), &header_));
      begin_ += kFrameHeaderBytes;
      has_header_ = header_.type == FrameType::kSlice;
      recv_ = nullptr;
      got_ = crc_ = 0;
    }
    return Status();
  }
  bool has_header() const { return has_header_; }
  const FrameHeader& header() const { return header_; }

  // Whether a header is parsed and its receive is not known.
  bool lacks_receive() const { return has_header_ && recv_ == nullptr; }
  // Sets where the payload goes. `recv` has room for header().bytes.
  void SetReceive(Recv* recv) { recv_ = recv; }

  // Moves the payload bytes in the buffer to the receive.
  void MovePayload(bool* moved);
  bool payload_is_whole() const { return got_ == header_.bytes; }
  // Leaves the frame, whose payload is whole. *recv is its receive. Errors: kProtocol; the frame then stays.
  Status Finish(Recv** recv);

  // Whether the stream's position is within a frame.
  bool within_frame() const { return has_header_ || begin_ != end_; }

  // Lists the room for the next bytes of the stream: at most `budget` bytes of the payload, straight into its receive,
  // and what follows into the buffer. `whole`: lists all the room that the buffer has.
  void ListRoom(size_t budget, bool whole, IoList* list);
  // Records that `bytes` bytes arrived in that room.
  void Fill(size_t bytes, bool* moved);

  // For the short path, on a frame whose header lacks a receive. Sets *found when the payload is whole in the buffer.
  // Errors: kProtocol.
  Status FindPayload(bool* found);
  const std::byte* payload() const { return buffer_.data() + begin_; }
  // Leaves that frame.
  void Skip() {
    begin_ += header_.bytes;
    has_header_ = false;
  }

  size_t buffer_bytes() const { return buffer_.size(); }

 private:
  // Bytes read beyond a payload, so that several small frames come with one read. At most this much of a large slice is
  // copied once more.
  static constexpr size_t kReadAheadBytes = 4096;

  bool checksummed() const { return (header_.flags & kFrameChecksummed) != 0; }
  size_t missing() const { return recv_ != nullptr ? header_.bytes - got_ : 0; }
  void OnArrived(size_t bytes, bool* moved);
  Status CheckPayload(uint32_t crc) const;

  std::vector<std::byte> buffer_;  // Fixed size; [begin_, end_) is in use.
  size_t begin_ = 0;
  size_t end_ = 0;
  FrameHeader header_;
  bool has_header_ = false;
  Recv* recv_ = nullptr;  // Receive of header_, or null.
  uint32_t got_ = 0;      // Payload bytes that are in recv_.
  uint32_t crc_ = 0;      // Checksum of these bytes, if the frame carries one.
};

}  // namespace annulus
