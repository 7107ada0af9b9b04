// Frame: the header in front of every slice on a TCP stream, its one writer and its one bounds-checked parser.
//
// 64 bytes, little-endian, one cache line; layout in docs/wire_protocol.md. The header always carries its own
// checksum, so a length or sequence number that was damaged in transit is never trusted. The payload's checksum is
// optional.
//
// Threads: plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "transport/transport.h"

namespace annulus {

enum class FrameType : uint8_t {
  kSlice = 1,
  kResume = 2,  // The first frame of a connection that takes the place of another, without a payload.
  kAsk = 3,     // Carries nothing, and is ignored: the receiver's kernel acknowledges it, so the path is alive.
};

// Flag: the header holds the payload's CRC-32C.
constexpr uint16_t kFrameChecksummed = 1;

struct FrameHeader {
  FrameType type = FrameType::kSlice;
  uint16_t flags = 0;
  uint32_t bytes = 0;        // Bytes of payload, which follows the header.
  uint32_t payload_crc = 0;  // 0 without kFrameChecksummed.
  // Number of this slice on its link and direction, from 0, over all lanes. Of kResume: the number of bytes that the
  // sender has received on this lane.
  uint64_t sequence = 0;
  Tag tag;
  bool operator==(const FrameHeader&) const = default;
};

constexpr size_t kFrameHeaderBytes = 64;
// Far above the size of any slice; a larger length is damage.
constexpr uint32_t kMaxFramePayload = uint32_t{1} << 30;

using FrameBytes = std::span<std::byte, kFrameHeaderBytes>;
using ConstFrameBytes = std::span<const std::byte, kFrameHeaderBytes>;

void WriteFrameHeader(const FrameHeader& header, FrameBytes to);

// Parses a header of the type that may come; where a slice may come, so may kAsk. Errors: kProtocol  names the wrong
// field and its value; `header` is unchanged.
Status ParseFrameHeader(ConstFrameBytes from, FrameHeader* header, FrameType type = FrameType::kSlice);

}  // namespace annulus
