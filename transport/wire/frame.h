// Frame: the header in front of every slice on a TCP stream, its one writer and its one bounds-checked parser.
//
// 64 bytes, little-endian, one cache line; layout in docs/wire_protocol.md. The header always carries a checksum of its
// own, so no length or sequence number is believed that was damaged under way; the payload's checksum is optional.
//
// Threads: plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "transport/transport.h"

namespace annulus {

enum class FrameType : uint8_t { kSlice = 1 };

// The payload's CRC-32C is in the header.
constexpr uint16_t kFrameChecksummed = 1;

struct FrameHeader {
  FrameType type = FrameType::kSlice;
  uint16_t flags = 0;
  uint32_t bytes = 0;        // Of payload, right behind the header.
  uint32_t payload_crc = 0;  // 0 without kFrameChecksummed.
  uint64_t sequence = 0;     // Number of this slice on its link and direction, from 0, over all lanes.
  Tag tag;
  bool operator==(const FrameHeader&) const = default;
};

constexpr size_t kFrameHeaderBytes = 64;
// No slice comes near this; a larger length is damage.
constexpr uint32_t kMaxFramePayload = uint32_t{1} << 30;

using FrameBytes = std::span<std::byte, kFrameHeaderBytes>;
using ConstFrameBytes = std::span<const std::byte, kFrameHeaderBytes>;

void WriteFrameHeader(const FrameHeader& header, FrameBytes to);

// Errors: kProtocol  names the field that is wrong and its value; `header` is unchanged.
Status ParseFrameHeader(ConstFrameBytes from, FrameHeader* header);

}  // namespace annulus
