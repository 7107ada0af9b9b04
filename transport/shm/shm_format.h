// The format of the memory that the two ends of a link share, version 6.
//
//   header                       written once by the creator, before the peer gets the file
//   2 x ShmEnd                   one per end: asleep? gone, and why? how fast does it read?
//   2 x "consumed" counter       one per direction
//   2 x descriptor ring          one per direction: slices, from its sender to its receiver
//   2 x return ring              one per direction: free slots, from its receiver back to its sender
//   2 x claims                   one set per direction, one claim per slot: who copies a slice that was lent
//   2 x slots                    one set per direction; only its sender hands them out
// Every word has one writer (only `asleep` is cleared by the other end, and claims are taken by either), and words of
// different writers lie on different cache lines. Both rings carry tickets: entry i of a ring is valid once its ticket
// is i + 1. So a reader polls the very line that brings the data, and one line moves per small slice.
//
// Nothing in here can be trusted: a reader loads each word once and checks it before use.
//
// Threads: each word belongs to the thread that drives its writer's endpoint; tickets and counters order the rest.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/transport.h"

namespace annulus {

// "ANNULSHM", little endian.
constexpr uint64_t kShmMagic = 0x4d48534c554e4e41;
constexpr uint32_t kShmVersion = 6;

// Random bits. Whoever can read them at the address at which a process says that it has mapped the file, has found that
// process.
using ShmNonce = std::array<uint64_t, 2>;

struct ShmHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t slots;
  uint64_t slot_bytes;
  uint64_t total_bytes;
  ShmNonce nonce{};
};

// Two cache lines, which processors prefetch as a pair.
constexpr size_t kShmLinePair = 128;

struct alignas(kShmLinePair) ShmEnd {
  // 1 while this end waits in its reactor. The end that clears it rings the bell, so there is one bell per sleep.
  std::atomic<uint32_t> asleep;
  // 0 while this end is up; 1 + the Code with which it left, or with which it gave up what it was sending to a peer
  // that had left. Set before its socket closes.
  std::atomic<uint32_t> farewell;
  // Where this end's process has mapped the file. Set before the peer makes its end.
  std::atomic<uint64_t> mapping;
  // 1 while this end can copy from the memory of the peer's process (ShmPeerMemory).
  std::atomic<uint32_t> reads;
  // How long this end takes to copy out of slots and from the memory of the peer's process (ShmPace::value). On a line
  // of its own, which seldom changes.
  alignas(kShmLinePair) std::atomic<uint32_t> slot_pace;
  std::atomic<uint32_t> loan_pace;
};

struct alignas(kShmLinePair) ShmCounter {
  std::atomic<uint64_t> value;
};

// Replaces a slot's index: the data lies in the descriptor's payload.
constexpr uint32_t kShmInline = 0xffffffff;
// Added to a slot's index: the data lies in registered memory of the sender, and the payload holds its ShmPlace. The
// slot is lent as always and returned once the data has been read, but its content is not used.
constexpr uint32_t kShmInPlace = 0x80000000;

// Added to a slot's index: the data lies in the sender's memory, and the payload begins with its address there. The
// slot is lent as always, and its claim says who copies the data, and whether it is in the slot.
constexpr uint32_t kShmLent = 0x40000000;

// Bytes of lent slices after which an end looks at other things before it copies more.
constexpr size_t kMostLentBytesAtOnce = 512 * 1024;

// States of a claim. The sender begins with kOffered, and ends with kCopied or kWithdrawn; the receiver ends with
// kRead.
enum class ShmClaimState : uint32_t {
  kOffered,
  kReading,    // The receiver copies the data; if it cannot, it offers it again.
  kRead,       // The sender's memory is not needed any more.
  kCopying,    // The sender copies the data to the slot.
  kCopied,     // The data is in the slot.
  kWithdrawn,  // The sender has given up, and its memory may change.
};
struct alignas(64) ShmClaim {
  std::atomic<ShmClaimState> state;

  // Whether the state was `from`, and is `to` now. Orders what was copied before.
  bool Move(ShmClaimState from, ShmClaimState to) {
    return state.compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }
};

// Where data lies in registered memory, or in memory of a device.
struct ShmPlace {
  uint64_t region;
  uint64_t offset;  // Bytes.
};
// Added to the number of a region that is an allocation of a device.
constexpr uint64_t kShmOnDevice = uint64_t{1} << 63;

// A message about memory that the peer reads in place. The link's socket carries these notices and bells of one byte.
struct ShmNotice {
  static constexpr uint64_t kShares = 0x52;        // The message carries the region's memory file.
  static constexpr uint64_t kForgets = 0x46;       // The region is gone.
  static constexpr uint64_t kSharesDevice = 0x44;  // Of a device; its description (SharedDeviceMemory) follows.
  static constexpr uint64_t kOpened = 0x4f;        // The other end's region, of a device, may be named from now on.

  // On the little-endian machines that share memory here, the first byte is never that of a bell.
  uint64_t kind;
  uint64_t region;
  uint64_t bytes;
};
constexpr char kShmBellByte = 0;

// Where a slice begins in its slot, in bytes; kShmBeginStep divides it. The payload begins with this where the slice
// lies in a slot, and was not lent. What was lent and then copied begins where the slot does.
using ShmBegin = uint64_t;
constexpr size_t kShmBeginStep = kShmLinePair;

// One slice. The first line holds the tag and up to 16 bytes of data, so sending one number costs the transfer of one
// line.
struct alignas(256) ShmDescriptor {
  static constexpr size_t kPayloadBytes = 208;

  std::atomic<uint64_t> ticket;  // The slice's index + 1; written last.
  std::atomic<uint32_t> slot;    // Index of the slot, or kShmInline.
  std::atomic<uint32_t> bytes;
  uint64_t tag[4];
  std::byte payload[kPayloadBytes];
};
static_assert(sizeof(ShmDescriptor) == 256);
static_assert(sizeof(ShmDescriptor::tag) == sizeof(Tag::words));
static_assert(std::atomic<ShmClaimState>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// A returned slot, in one word: the low 32 bits of the ticket above the slot's index.
using ShmReturn = std::atomic<uint64_t>;

// One direction's parts, as mapped here.
struct ShmDirection {
  ShmDescriptor* ring = nullptr;
  uint64_t ring_entries = 0;  // A power of two.
  ShmReturn* returns = nullptr;
  uint64_t return_entries = 0;  // A power of two, at least `slots`: it cannot overflow.
  ShmClaim* claims = nullptr;   // By slot.
  // Number of descriptors that the receiver is done with; it lags, see ShmReceiver.
  std::atomic<uint64_t>* consumed = nullptr;
  std::byte* slots = nullptr;
  uint32_t num_slots = 0;
  size_t slot_bytes = 0;
  size_t slot_stride = 0;
};

// An invalid word of the peer, or an operation that this process cannot perform; the endpoint makes a Status of it.
struct ShmFault {
  const char* field = nullptr;  // Null: no fault.
  uint64_t value = 0;
  uint64_t limit = 0;
  int os_errno = 0;  // Not 0: the operating system refused this process what `field` names.
};

}  // namespace annulus
