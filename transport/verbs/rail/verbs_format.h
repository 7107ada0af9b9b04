// What the two ends of a verbs link tell each other: the greeting that sets the link up, the messages of the link, and
// the farewell. The writers and readers of all of these formats are here.
//
// Over the authenticated stream, each end sends its greeting, a word once its queue pair is ready or a device has
// refused the link, and at the end its farewell, or what it has received when the link is to go on over the stream. All
// else goes over the queue pairs. Each message there has an immediate, which is a kind and a value:
//
//   kShort   A send of header and data. It takes one of the receiver's cells.
//   kUpdate  A send of a header alone, which returns credits.
//   kSlice   An RDMA write of the header and the first part of the data into a slot. The value is the slot.
//   kPart    An RDMA write of the next part of that slice. The value is the number of bytes written so far.
//
// A slice of kSlice whose header says so is in its sender's memory, and what follows the header is not data but the
// place, from which the receiver's device reads it (VerbsReads). The slot is the receiver's to read it into.
//
// A link has one queue pair or several, which share the slots: its rails. A slice and all its parts take one rail. Each
// rail keeps the order of its messages; slices that took different ones are put in order by their numbers.
//
// Every header returns credits: the number of messages of its rail that its sender has taken, so that as many receives
// are posted again, and a bit for each slot. The bit changes whenever the slot is released, so a header that repeats
// what the last one said does no harm. Headers of different rails may come in another order than they were sent; the
// one that tells of more releases is the newer one.
//
// Nothing that a peer sends is trusted: readers check what can be checked alone; sender and receiver check the rest.
//
// Threads: plain functions and values.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "transport/transport.h"

namespace annulus {

constexpr size_t kVerbsHeaderBytes = 64;
// Where a slice is that the receiver's device is to read.
constexpr size_t kVerbsPlaceBytes = 16;
// Largest payload of a kShort message, in bytes; a cell is header and payload.
constexpr size_t kVerbsShortBytes = 192;
constexpr size_t kVerbsCellBytes = kVerbsHeaderBytes + kVerbsShortBytes;
// Most slots per direction: the bits of VerbsHeader::released.
constexpr int kMostVerbsSlots = 64;

// Number of receives posted for a link with `slots` slots, and room in its send queue. The engine holds up to `slots`
// cells, and half of the receives are more than that.
constexpr uint32_t VerbsQueueDepth(int slots) { return 2 * static_cast<uint32_t>(slots) + 16; }

// Headers that a sender keeps until their requests are done. A power of two, so that they stay apart when the count of
// requests wraps around.
constexpr uint32_t VerbsHeaders(int slots) { return std::bit_ceil(VerbsQueueDepth(slots)); }

// Bytes from one slot to the next, a header before each.
constexpr size_t VerbsSlotStride(size_t slot_bytes) { return kVerbsHeaderBytes + (slot_bytes + 63) / 64 * 64; }

// Most rails of a link; as many as a rank has ports (kMostVerbsPorts).
constexpr size_t kMostVerbsRails = 8;

// Most READs of a rail under way at a time, per direction. Cards have room for 16 or more.
constexpr uint32_t kMostVerbsReads = 16;

// Whether `count` has reached `goal`; both wrap around.
constexpr bool VerbsReached(uint32_t count, uint32_t goal) { return static_cast<int32_t>(count - goal) >= 0; }

enum class VerbsKind : uint32_t { kShort, kUpdate, kSlice, kPart };

struct VerbsImmediate {
  VerbsKind kind = VerbsKind::kShort;
  uint32_t value = 0;  // Below kMostValue.

  static constexpr uint32_t kMostValue = (1U << 30) - 1;
  uint32_t Pack() const { return static_cast<uint32_t>(kind) << 30 | value; }
  static VerbsImmediate Unpack(uint32_t packed) { return {static_cast<VerbsKind>(packed >> 30), packed & kMostValue}; }
};

struct VerbsHeader {
  Tag tag;
  uint64_t released = 0;      // A bit for each slot, see above.
  uint32_t releases = 0;      // Number of releases so far, modulo 2^32.
  uint32_t taken_slices = 0;  // Number of slices that are taken whole, modulo 2^32.
  uint32_t taken = 0;         // Number of messages of this rail that are taken, modulo 2^32.
  uint32_t bytes = 0;         // Size of the slice.
  uint32_t sequence = 0;      // Number of the slice, modulo 2^32; unused in kUpdate.
  // Its memory is its owner's, who waits to hear that the slice was taken.
  bool lent = false;
  // The data is at a place in the sender's memory, which follows the header.
  bool placed = false;

  // Bytes of the slice in this message. The message's size tells, so it is not sent.
  uint32_t ready = 0;
};

// Memory of the sender that its device lets the peer read.
struct VerbsPlace {
  uint64_t address = 0;
  uint32_t key = 0;  // Remote key, of the rail that brings the header.
};

void WriteVerbsPlace(const VerbsPlace& place, std::byte* to);
// Returns false when no `bytes` can be there.
bool ReadVerbsPlace(const std::byte* from, uint32_t bytes, VerbsPlace* place);

void WriteVerbsHeader(const VerbsHeader& header, std::byte* to);
// All but `ready`. Errors: kProtocol when no slice can be like this.
Status ReadVerbsHeader(const std::byte* from, VerbsHeader* header);

// One rail's end, before its peer can reach it.
struct VerbsRailGreeting {
  uint32_t queue_pair = 0;
  uint32_t first_packet = 0;  // Packet sequence number, 24 bits.
  uint32_t key = 0;           // Remote key of the slots.
  uint16_t lid = 0;
  uint16_t pkey = 0;  // Partition key. Its and the LID's meaning: InfiniBand alone.
  bool ethernet = false;
  uint8_t mtu = 0;      // As in ibv_mtu.
  uint8_t reads = 0;    // READs that this end has under way at most.
  uint8_t answers = 0;  // READs of the peer that its device answers at a time.
  std::array<uint8_t, 16> gid{};
};

// What an end says of itself before its peer can reach it.
struct VerbsGreeting {
  static constexpr size_t kBytes = 328;

  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
  uint64_t address = 0;    // Address of the first slot's header.
  bool continues = false;  // When it fails, the link may go on over the stream.
  bool refused = false;    // The end's device has refused the link. All else is 0.
  uint32_t num_rails = 0;
  std::array<VerbsRailGreeting, kMostVerbsRails> rails{};  // The first num_rails; the others are 0.
};

void WriteVerbsGreeting(const VerbsGreeting& greeting, std::span<std::byte, VerbsGreeting::kBytes> to);
// Errors: kProtocol  says what is wrong.
Status ReadVerbsGreeting(std::span<const std::byte, VerbsGreeting::kBytes> from, VerbsGreeting* greeting);

// What a device refuses while a link is made.
enum class VerbsStep : uint8_t { kNothing, kQueue, kPair, kConnecting };

// The word that follows the greeting: the end can receive, or it does not use the link, since a device has refused it.
struct VerbsWord {
  static constexpr size_t kBytes = 8;
  static constexpr int kMostErrno = 4095;

  bool ready = false;
  VerbsStep refused = VerbsStep::kNothing;  // What this end's device refused; nothing: the peer's did.
  int os_errno = 0;                         // The reason; 0: none is known.
};

void WriteVerbsWord(const VerbsWord& word, std::span<std::byte, VerbsWord::kBytes> to);
// Returns false when it is none.
bool ReadVerbsWord(std::span<const std::byte, VerbsWord::kBytes> from, VerbsWord* word);

// Messages of one rail, modulo 2^32.
struct VerbsRailCounts {
  uint32_t sent = 0;      // Those that the peer's device has acknowledged.
  uint32_t received = 0;  // Those that have arrived.
  bool operator==(const VerbsRailCounts&) const = default;
};

struct VerbsFarewell {
  static constexpr size_t kBytes = 88;

  Code code = Code::kOk;      // Why the end leaves; kOk: it was closed.
  uint32_t failure = 0;       // The first failed request's ibv_wc_status; 0: none has failed.
  uint32_t taken_slices = 0;  // As in VerbsHeader.
  std::array<VerbsRailCounts, kMostVerbsRails> rails{};  // 0 beyond those of the link.
};

void WriteVerbsFarewell(const VerbsFarewell& farewell, std::span<std::byte, VerbsFarewell::kBytes> to);
// Returns false when it is none.
bool ReadVerbsFarewell(std::span<const std::byte, VerbsFarewell::kBytes> from, VerbsFarewell* farewell);

// What an end says in place of a farewell when its device has stopped and the link is to go on over the stream. What
// follows belongs to the other link.
struct VerbsStop {
  static constexpr size_t kBytes = VerbsFarewell::kBytes;

  uint32_t failure = 0;  // As in VerbsFarewell.
  uint32_t slices = 0;   // Slices that have arrived whole, modulo 2^32.
};

void WriteVerbsStop(const VerbsStop& stop, std::span<std::byte, VerbsStop::kBytes> to);
// Returns false when it is none.
bool ReadVerbsStop(std::span<const std::byte, VerbsStop::kBytes> from, VerbsStop* stop);

}  // namespace annulus
