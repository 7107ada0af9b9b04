#include "transport/verbs/verbs_format.h"

#include <string>

#include "base/bytes.h"
#include "transport/verbs/device/verbs_route.h"

namespace annulus {
namespace {

constexpr uint64_t kGreetingMagic = 0x54454552472b5641;  // "AV+GREET", little endian.
constexpr uint64_t kFarewellMagic = 0x4547455942425641;  // "AVBBYEGE", little endian.
constexpr uint64_t kReady = 0x5944414552425641;          // "AVBREADY", little endian.
constexpr uint32_t kRefusedMagic = 0x4f4e5641;           // "AVNO", little endian.
constexpr uint64_t kStopMagic = 0x53504f5453425641;      // "AVBSTOPS", little endian.
constexpr uint32_t kGreetingVersion = 1;
constexpr uint32_t kMost24Bits = (1U << 24) - 1;
constexpr uint8_t kMostMtu = 5;  // 4096 bytes.

// Flags of a greeting. Others are for later versions.
constexpr uint64_t kContinues = 1;
constexpr uint64_t kRefused = 2;

Status Broken(const std::string& what, uint64_t value) {
  return {Code::kProtocol, "verbs: " + what + " of " + std::to_string(value) + " is not allowed"};
}

}  // namespace

void WriteVerbsHeader(const VerbsHeader& header, std::byte* to) {
  FixedWriter writer({to, kVerbsHeaderBytes});
  for (const uint64_t word : header.tag.words) writer.U64(word);
  writer.U64(header.released).U32(header.taken).U32(header.bytes).U32(header.ready).U32(header.sequence);
  writer.U64(header.lent ? 1 : 0);
}

Status ReadVerbsHeader(const std::byte* from, VerbsHeader* header) {
  ByteReader reader(std::span(from, kVerbsHeaderBytes));
  for (uint64_t& word : header->tag.words) word = reader.U64();
  header->released = reader.U64();
  header->taken = reader.U32();
  header->bytes = reader.U32();
  header->ready = reader.U32();
  header->sequence = reader.U32();
  const uint64_t flags = reader.U64();
  if (!reader.done() || flags > 1) return Broken("a header's end", flags);
  header->lent = flags == 1;
  if (header->ready > header->bytes) return Broken("a first part", header->ready);
  return Status();
}

void WriteVerbsGreeting(const VerbsGreeting& greeting, std::span<std::byte, VerbsGreeting::kBytes> to) {
  FixedWriter writer(to);
  writer.U64(kGreetingMagic).U32(kGreetingVersion);
  writer.U32(greeting.queue_pair).U32(greeting.first_packet).U16(greeting.lid);
  writer.U8(greeting.ethernet ? 1 : 0).U8(greeting.mtu).Bytes(std::as_bytes(std::span(greeting.gid)));
  writer.U32(greeting.slots).U64(greeting.slot_bytes).U64(greeting.address).U32(greeting.key);
  writer.U64((greeting.continues ? kContinues : 0) | (greeting.refused ? kRefused : 0)).U16(greeting.pkey);
  writer.U16(0).U32(0);
}

Status ReadVerbsGreeting(std::span<const std::byte, VerbsGreeting::kBytes> from, VerbsGreeting* greeting) {
  ByteReader reader(from);
  const uint64_t magic = reader.U64();
  const uint32_t version = reader.U32();
  VerbsGreeting read;
  read.queue_pair = reader.U32();
  read.first_packet = reader.U32();
  read.lid = reader.U16();
  const uint8_t ethernet = reader.U8();
  read.mtu = reader.U8();
  reader.Bytes(std::as_writable_bytes(std::span(read.gid)));
  read.slots = reader.U32();
  read.slot_bytes = reader.U64();
  read.address = reader.U64();
  read.key = reader.U32();
  const uint64_t flags = reader.U64();
  read.pkey = reader.U16();
  read.continues = (flags & kContinues) != 0;
  if (!reader.ok() || magic != kGreetingMagic) return Broken("a greeting's magic number", magic);
  if (version != kGreetingVersion) return Broken("a greeting's version", version);
  if ((flags & kRefused) != 0) {
    *greeting = VerbsGreeting();
    greeting->refused = true;
    return Status();
  }
  if (read.queue_pair == 0 || read.queue_pair > kMost24Bits) return Broken("a queue pair number", read.queue_pair);
  if (read.first_packet > kMost24Bits) return Broken("a packet number", read.first_packet);
  if (ethernet > 1) return Broken("a link layer", ethernet);
  if (ethernet == 0 && (read.lid == 0 || read.lid > kMostLid)) return Broken("a LID", read.lid);
  if (ethernet == 0 && (read.pkey & 0x7fff) == 0) return Broken("a partition key", read.pkey);
  if (read.mtu < 1 || read.mtu > kMostMtu) return Broken("an MTU", read.mtu);
  if (read.slots < 1 || read.slots > kMostVerbsSlots) return Broken("a number of slots", read.slots);
  if (read.slot_bytes < 1 || read.slot_bytes > VerbsImmediate::kMostValue) return Broken("a slot", read.slot_bytes);
  if (read.address > UINT64_MAX - read.slots * VerbsSlotStride(read.slot_bytes)) {
    return Broken("an address of slots", read.address);
  }
  read.ethernet = ethernet == 1;
  *greeting = read;
  return Status();
}

void WriteVerbsWord(const VerbsWord& word, std::span<std::byte, VerbsWord::kBytes> to) {
  FixedWriter writer(to);
  if (word.ready) {
    writer.U64(kReady);
    return;
  }
  writer.U32(kRefusedMagic).U16(static_cast<uint16_t>(word.os_errno));
  writer.U8(static_cast<uint8_t>(word.refused)).U8(0);
}

bool ReadVerbsWord(std::span<const std::byte, VerbsWord::kBytes> from, VerbsWord* word) {
  *word = VerbsWord();
  word->ready = LoadLittle<uint64_t>(from.data()) == kReady;
  if (word->ready) return true;
  ByteReader reader(from);
  const uint32_t magic = reader.U32();
  word->os_errno = reader.U16();
  const uint8_t refused = reader.U8();
  word->refused = static_cast<VerbsStep>(refused);
  return reader.U8() == 0 && reader.done() && magic == kRefusedMagic && word->os_errno <= VerbsWord::kMostErrno &&
         refused <= static_cast<uint8_t>(VerbsStep::kConnecting);
}

void WriteVerbsFarewell(const VerbsFarewell& farewell, std::span<std::byte, VerbsFarewell::kBytes> to) {
  FixedWriter writer(to);
  writer.U64(kFarewellMagic).U32(static_cast<uint32_t>(farewell.code)).U32(farewell.failure);
  writer.U32(farewell.sent).U32(farewell.received);
}

bool ReadVerbsFarewell(std::span<const std::byte, VerbsFarewell::kBytes> from, VerbsFarewell* farewell) {
  ByteReader reader(from);
  const uint64_t magic = reader.U64();
  const uint32_t code = reader.U32();
  farewell->failure = reader.U32();
  farewell->sent = reader.U32();
  farewell->received = reader.U32();
  if (!reader.done() || magic != kFarewellMagic || code > static_cast<uint32_t>(Code::kInternal)) return false;
  farewell->code = static_cast<Code>(code);
  return true;
}

void WriteVerbsStop(const VerbsStop& stop, std::span<std::byte, VerbsStop::kBytes> to) {
  FixedWriter writer(to);
  writer.U64(kStopMagic).U32(stop.failure).U32(stop.slices).U64(0);
}

bool ReadVerbsStop(std::span<const std::byte, VerbsStop::kBytes> from, VerbsStop* stop) {
  ByteReader reader(from);
  const uint64_t magic = reader.U64();
  stop->failure = reader.U32();
  stop->slices = reader.U32();
  return reader.U64() == 0 && reader.done() && magic == kStopMagic;
}

}  // namespace annulus
