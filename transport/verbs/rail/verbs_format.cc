#include "transport/verbs/rail/verbs_format.h"

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
constexpr uint32_t kGreetingVersion = 3;
constexpr uint32_t kMost24Bits = (1U << 24) - 1;
constexpr uint8_t kMostMtu = 5;                              // 4096 bytes.
constexpr size_t kStopReserved = VerbsStop::kBytes / 8 - 2;  // Words.

// Flags of a greeting. Others are for later versions.
constexpr uint32_t kContinues = 1;
constexpr uint32_t kRefused = 2;

// Flags of a header.
constexpr uint32_t kLent = 1;
constexpr uint32_t kPlaced = 2;

Status Broken(const std::string& what, uint64_t value) {
  return {Code::kProtocol, "verbs: " + what + " of " + std::to_string(value) + " is not allowed"};
}

void WriteRail(const VerbsRailGreeting& rail, FixedWriter* writer) {
  writer->U32(rail.queue_pair).U32(rail.first_packet).U32(rail.key).U16(rail.lid).U16(rail.pkey);
  writer->U8(rail.ethernet ? 1 : 0)
      .U8(rail.mtu)
      .U8(rail.reads)
      .U8(rail.answers)
      .Bytes(std::as_bytes(std::span(rail.gid)));
}

Status ReadRail(ByteReader* reader, VerbsRailGreeting* rail) {
  rail->queue_pair = reader->U32();
  rail->first_packet = reader->U32();
  rail->key = reader->U32();
  rail->lid = reader->U16();
  rail->pkey = reader->U16();
  const uint8_t ethernet = reader->U8();
  rail->mtu = reader->U8();
  rail->reads = reader->U8();
  rail->answers = reader->U8();
  reader->Bytes(std::as_writable_bytes(std::span(rail->gid)));
  if (rail->queue_pair == 0 || rail->queue_pair > kMost24Bits) return Broken("a queue pair number", rail->queue_pair);
  if (rail->first_packet > kMost24Bits) return Broken("a packet number", rail->first_packet);
  if (ethernet > 1) return Broken("a link layer", ethernet);
  rail->ethernet = ethernet == 1;
  if (ethernet == 0 && (rail->lid == 0 || rail->lid > kMostLid)) return Broken("a LID", rail->lid);
  if (ethernet == 0 && (rail->pkey & 0x7fff) == 0) return Broken("a partition key", rail->pkey);
  if (rail->mtu < 1 || rail->mtu > kMostMtu) return Broken("an MTU", rail->mtu);
  if (rail->reads > kMostVerbsReads) return Broken("a number of READs", rail->reads);
  if (rail->answers > kMostVerbsReads) return Broken("a number of answered READs", rail->answers);
  return Status();
}

}  // namespace

void WriteVerbsHeader(const VerbsHeader& header, std::byte* to) {
  FixedWriter writer({to, kVerbsHeaderBytes});
  for (const uint64_t word : header.tag.words) writer.U64(word);
  writer.U64(header.released).U32(header.releases).U32(header.taken_slices).U32(header.taken);
  writer.U32(header.bytes).U32(header.sequence).U32((header.lent ? kLent : 0) | (header.placed ? kPlaced : 0));
}

Status ReadVerbsHeader(const std::byte* from, VerbsHeader* header) {
  ByteReader reader(std::span(from, kVerbsHeaderBytes));
  for (uint64_t& word : header->tag.words) word = reader.U64();
  header->released = reader.U64();
  header->releases = reader.U32();
  header->taken_slices = reader.U32();
  header->taken = reader.U32();
  header->bytes = reader.U32();
  header->sequence = reader.U32();
  const uint32_t flags = reader.U32();
  if (!reader.done() || flags > (kLent | kPlaced)) return Broken("a header's end", flags);
  header->lent = (flags & kLent) != 0;
  header->placed = (flags & kPlaced) != 0;
  return Status();
}

void WriteVerbsPlace(const VerbsPlace& place, std::byte* to) {
  FixedWriter writer({to, kVerbsPlaceBytes});
  writer.U64(place.address).U32(place.key).U32(0);
}

bool ReadVerbsPlace(const std::byte* from, uint32_t bytes, VerbsPlace* place) {
  ByteReader reader(std::span(from, kVerbsPlaceBytes));
  place->address = reader.U64();
  place->key = reader.U32();
  const uint32_t reserved = reader.U32();
  return reader.done() && reserved == 0 && bytes > 0 && place->address <= UINT64_MAX - bytes;
}

void WriteVerbsGreeting(const VerbsGreeting& greeting, std::span<std::byte, VerbsGreeting::kBytes> to) {
  FixedWriter writer(to);
  writer.U64(kGreetingMagic).U32(kGreetingVersion);
  writer.U32((greeting.continues ? kContinues : 0) | (greeting.refused ? kRefused : 0));
  writer.U32(greeting.slots).U32(greeting.num_rails).U64(greeting.slot_bytes).U64(greeting.address);
  for (const VerbsRailGreeting& rail : greeting.rails) WriteRail(rail, &writer);
}

Status ReadVerbsGreeting(std::span<const std::byte, VerbsGreeting::kBytes> from, VerbsGreeting* greeting) {
  ByteReader reader(from);
  const uint64_t magic = reader.U64();
  const uint32_t version = reader.U32();
  const uint32_t flags = reader.U32();
  VerbsGreeting read;
  read.slots = reader.U32();
  read.num_rails = reader.U32();
  read.slot_bytes = reader.U64();
  read.address = reader.U64();
  read.continues = (flags & kContinues) != 0;
  if (!reader.ok() || magic != kGreetingMagic) return Broken("a greeting's magic number", magic);
  if (version != kGreetingVersion) return Broken("a greeting's version", version);
  if ((flags & kRefused) != 0) {
    *greeting = VerbsGreeting();
    greeting->refused = true;
    return Status();
  }
  if (read.slots < 1 || read.slots > kMostVerbsSlots) return Broken("a number of slots", read.slots);
  if (read.slot_bytes < 1 || read.slot_bytes > VerbsImmediate::kMostValue) return Broken("a slot", read.slot_bytes);
  if (read.address > UINT64_MAX - read.slots * VerbsSlotStride(read.slot_bytes)) {
    return Broken("an address of slots", read.address);
  }
  if (read.num_rails < 1 || read.num_rails > kMostVerbsRails) return Broken("a number of rails", read.num_rails);
  for (uint32_t i = 0; i < read.num_rails; ++i) ANNULUS_RETURN_IF_ERROR(ReadRail(&reader, &read.rails[i]));
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
  writer.U32(farewell.taken_slices).U32(0);
  for (const VerbsRailCounts& rail : farewell.rails) writer.U32(rail.sent).U32(rail.received);
}

bool ReadVerbsFarewell(std::span<const std::byte, VerbsFarewell::kBytes> from, VerbsFarewell* farewell) {
  ByteReader reader(from);
  const uint64_t magic = reader.U64();
  const uint32_t code = reader.U32();
  farewell->failure = reader.U32();
  farewell->taken_slices = reader.U32();
  const uint32_t reserved = reader.U32();
  for (VerbsRailCounts& rail : farewell->rails) {
    rail.sent = reader.U32();
    rail.received = reader.U32();
  }
  if (!reader.done() || magic != kFarewellMagic || reserved != 0 || code > static_cast<uint32_t>(Code::kInternal))
    return false;
  farewell->code = static_cast<Code>(code);
  return true;
}

void WriteVerbsStop(const VerbsStop& stop, std::span<std::byte, VerbsStop::kBytes> to) {
  FixedWriter writer(to);
  writer.U64(kStopMagic).U32(stop.failure).U32(stop.slices);
  for (size_t i = 0; i < kStopReserved; ++i) writer.U64(0);
}

bool ReadVerbsStop(std::span<const std::byte, VerbsStop::kBytes> from, VerbsStop* stop) {
  ByteReader reader(from);
  const uint64_t magic = reader.U64();
  stop->failure = reader.U32();
  stop->slices = reader.U32();
  uint64_t reserved = 0;
  for (size_t i = 0; i < kStopReserved; ++i) reserved |= reader.U64();
  return reserved == 0 && reader.done() && magic == kStopMagic;
}

}  // namespace annulus
