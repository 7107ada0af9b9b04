// TcpFrameReader: finds the frames in the bytes of one stream: parses headers, lets payload run through to the receive
// that it belongs to, checks checksums, and knows where in a frame the stream stands. It neither reads nor completes
// anything: a session does.
//
// Threads: those of the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/tcp/io_list.h"
#include "transport/transport.h"
#include "transport/wire/frame.h"

namespace annulus {

class TcpFrameReader {
 public:
  // Payloads of up to `most_whole` bytes can be had whole from the buffer, without a receive; 0: none.
  explicit TcpFrameReader(uint32_t most_whole);

  // Parses the next frame's header, unless that was done, if it is there whole. Errors: kProtocol.
  Status TakeHeader() {  // Here, because each small call looks for a header or two.
    if (has_header_ || end_ - begin_ < kFrameHeaderBytes) return Status();
    ANNULUS_RETURN_IF_ERROR(ParseFrameHeader(ConstFrameBytes(buffer_.data() + begin_, kFrameHeaderBytes), &header_));
    begin_ += kFrameHeaderBytes;
    has_header_ = true;
    recv_ = nullptr;
    got_ = crc_ = 0;
    return Status();
  }
  bool has_header() const { return has_header_; }
  const FrameHeader& header() const { return header_; }

  // There is a header whose receive is not known.
  bool lacks_receive() const { return has_header_ && recv_ == nullptr; }
  // Where the payload goes. With room for header().bytes.
  void SetReceive(Recv* recv) { recv_ = recv; }

  // Moves what the buffer has of the payload to the receive.
  void MovePayload(bool* moved);
  bool payload_is_whole() const { return got_ == header_.bytes; }
  // Leaves the frame behind, whose payload is whole: *recv is its receive. Errors: kProtocol, and the frame stays.
  Status Finish(Recv** recv);

  // The stream stands within a frame.
  bool within_frame() const { return has_header_ || begin_ != end_; }

  // Adds where the next bytes of the stream go: `budget` bytes at most of the payload, straight to its receive, and
  // what follows into the buffer. `whole`: as much of it as there is room for.
  void ListRoom(size_t budget, bool whole, IoList* list);
  // That many bytes came into that room.
  void Fill(size_t bytes, bool* moved);

  // The short way, of a frame with a header that lacks its receive. Sets *found when the payload is whole in the
  // buffer. Errors: kProtocol.
  Status FindPayload(bool* found);
  const std::byte* payload() const { return buffer_.data() + begin_; }
  // Leaves that frame behind.
  void Skip() {
    begin_ += header_.bytes;
    has_header_ = false;
  }

  size_t buffer_bytes() const { return buffer_.size(); }

 private:
  // Bytes read beyond a payload, so that small frames come several to a read. Of a large slice at most this much is
  // copied once more.
  static constexpr size_t kReadAheadBytes = 4096;

  bool checksummed() const { return (header_.flags & kFrameChecksummed) != 0; }
  size_t missing() const { return recv_ != nullptr ? header_.bytes - got_ : 0; }
  void Arrived(size_t bytes, bool* moved);
  Status CheckPayload(uint32_t crc) const;

  std::vector<std::byte> buffer_;  // Of fixed size; [begin_, end_) is used.
  size_t begin_ = 0;
  size_t end_ = 0;
  FrameHeader header_;
  bool has_header_ = false;
  Recv* recv_ = nullptr;  // Receive of header_, or null.
  uint32_t got_ = 0;      // Bytes of the payload that are in recv_.
  uint32_t crc_ = 0;      // Their checksum, if the frame carries one.
};

}  // namespace annulus
