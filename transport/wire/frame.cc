#include "transport/wire/frame.h"

#include <cstdio>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/check.h"
#include "transport/wire/crc32c.h"

namespace annulus {
namespace {

constexpr uint32_t kMagic = 0x46'4e'41'0a;  // "\nANF" in memory.
constexpr uint8_t kVersion = 1;
constexpr uint16_t kKnownFlags = kFrameChecksummed;

constexpr size_t kHeaderCrcAt = kFrameHeaderBytes - 4;  // The last field; it covers all fields before it.

Status Broken(const char* field, uint64_t value, uint64_t expected) {
  char text[120];
  std::snprintf(text, sizeof(text), "broken frame: %s is 0x%llx, expected 0x%llx", field,
                static_cast<unsigned long long>(value), static_cast<unsigned long long>(expected));
  return {Code::kProtocol, text};
}

Status TooLarge(const char* field, uint64_t value, uint64_t most) {
  return {Code::kProtocol, std::string("broken frame: ") + field + " is " + std::to_string(value) + ", at most " +
                               std::to_string(most) + " is allowed"};
}

}  // namespace

// Both functions process the fields in their order, which docs/wire_protocol.md specifies.
void WriteFrameHeader(const FrameHeader& header, FrameBytes to) {
  FixedWriter out(to);
  out.U32(kMagic).U8(kVersion).U8(static_cast<uint8_t>(header.type)).U16(header.flags);
  out.U32(header.bytes).U32(header.payload_crc).U64(header.sequence);
  out.Bytes(std::as_bytes(std::span(header.tag.words))).U32(0);
  out.U32(Crc32c(to.first(kHeaderCrcAt)));
  ANNULUS_CHECK(out.full());
}

Status ParseFrameHeader(ConstFrameBytes from, FrameHeader* header, FrameType expected) {
  ByteReader in(from);
  const uint32_t magic = in.U32();
  if (magic != kMagic) return Broken("magic", magic, kMagic);
  const uint8_t version = in.U8();
  if (version != kVersion) return Broken("version", version, kVersion);
  FrameHeader parsed;
  const uint8_t type = in.U8();
  parsed.flags = in.U16();
  parsed.bytes = in.U32();
  parsed.payload_crc = in.U32();
  parsed.sequence = in.U64();
  in.Bytes(std::as_writable_bytes(std::span(parsed.tag.words)));
  const uint32_t reserved = in.U32();
  const uint32_t crc = in.U32();
  ANNULUS_CHECK(in.done());

  const uint32_t computed = Crc32c(from.first(kHeaderCrcAt));
  if (crc != computed) return Broken("header checksum", crc, computed);
  const bool asks = expected == FrameType::kSlice && type == static_cast<uint8_t>(FrameType::kAsk);
  if (type != static_cast<uint8_t>(expected) && !asks) return Broken("type", type, static_cast<uint8_t>(expected));
  parsed.type = asks ? FrameType::kAsk : expected;
  if (parsed.type != FrameType::kSlice && parsed.bytes != 0) return TooLarge("payload length", parsed.bytes, 0);
  if ((parsed.flags & ~kKnownFlags) != 0) return Broken("flags", parsed.flags, parsed.flags & kKnownFlags);
  if (parsed.bytes > kMaxFramePayload) return TooLarge("payload length", parsed.bytes, kMaxFramePayload);
  if ((parsed.flags & kFrameChecksummed) == 0 && parsed.payload_crc != 0) {
    return Broken("payload checksum of a frame without one", parsed.payload_crc, 0);
  }
  if (reserved != 0) return Broken("reserved field", reserved, 0);
  *header = parsed;
  return Status();
}

}  // namespace annulus
