#include "transport/wire/frame.h"

#include <cstdio>
#include <cstring>
#include <string>

#include "transport/wire/bytes.h"
#include "transport/wire/crc32c.h"

namespace annulus {
namespace {

constexpr uint32_t kMagic = 0x46'4e'41'0a;  // "\nANF" in memory.
constexpr uint8_t kVersion = 1;
constexpr uint16_t kKnownFlags = kFrameChecksummed;

constexpr size_t kMagicAt = 0;
constexpr size_t kVersionAt = 4;
constexpr size_t kTypeAt = 5;
constexpr size_t kFlagsAt = 6;
constexpr size_t kBytesAt = 8;
constexpr size_t kPayloadCrcAt = 12;
constexpr size_t kSequenceAt = 16;
constexpr size_t kTagAt = 24;
constexpr size_t kReservedAt = 56;
constexpr size_t kHeaderCrcAt = 60;
static_assert(kTagAt + sizeof(Tag) == kReservedAt && kHeaderCrcAt + 4 == kFrameHeaderBytes);

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

void WriteFrameHeader(const FrameHeader& header, FrameBytes to) {
  std::byte* out = to.data();
  StoreLittle<uint32_t>(out + kMagicAt, kMagic);
  StoreLittle<uint8_t>(out + kVersionAt, kVersion);
  StoreLittle<uint8_t>(out + kTypeAt, static_cast<uint8_t>(header.type));
  StoreLittle<uint16_t>(out + kFlagsAt, header.flags);
  StoreLittle<uint32_t>(out + kBytesAt, header.bytes);
  StoreLittle<uint32_t>(out + kPayloadCrcAt, header.payload_crc);
  StoreLittle<uint64_t>(out + kSequenceAt, header.sequence);
  std::memcpy(out + kTagAt, header.tag.words.data(), sizeof(Tag));
  StoreLittle<uint32_t>(out + kReservedAt, 0);
  StoreLittle<uint32_t>(out + kHeaderCrcAt, Crc32c(to.first(kHeaderCrcAt)));
}

Status ParseFrameHeader(ConstFrameBytes from, FrameHeader* header) {
  const std::byte* in = from.data();
  const uint32_t magic = LoadLittle<uint32_t>(in + kMagicAt);
  if (magic != kMagic) return Broken("magic", magic, kMagic);
  const uint8_t version = LoadLittle<uint8_t>(in + kVersionAt);
  if (version != kVersion) return Broken("version", version, kVersion);
  const uint32_t crc = LoadLittle<uint32_t>(in + kHeaderCrcAt);
  const uint32_t computed = Crc32c(from.first(kHeaderCrcAt));
  if (crc != computed) return Broken("header checksum", crc, computed);

  FrameHeader parsed;
  const uint8_t type = LoadLittle<uint8_t>(in + kTypeAt);
  if (type != static_cast<uint8_t>(FrameType::kSlice))
    return Broken("type", type, static_cast<uint8_t>(FrameType::kSlice));
  parsed.flags = LoadLittle<uint16_t>(in + kFlagsAt);
  if ((parsed.flags & ~kKnownFlags) != 0) return Broken("flags", parsed.flags, parsed.flags & kKnownFlags);
  parsed.bytes = LoadLittle<uint32_t>(in + kBytesAt);
  if (parsed.bytes > kMaxFramePayload) return TooLarge("payload length", parsed.bytes, kMaxFramePayload);
  parsed.payload_crc = LoadLittle<uint32_t>(in + kPayloadCrcAt);
  if ((parsed.flags & kFrameChecksummed) == 0 && parsed.payload_crc != 0) {
    return Broken("payload checksum of a frame without one", parsed.payload_crc, 0);
  }
  parsed.sequence = LoadLittle<uint64_t>(in + kSequenceAt);
  std::memcpy(parsed.tag.words.data(), in + kTagAt, sizeof(Tag));
  const uint32_t reserved = LoadLittle<uint32_t>(in + kReservedAt);
  if (reserved != 0) return Broken("reserved field", reserved, 0);
  *header = parsed;
  return Status();
}

}  // namespace annulus
