#include "transport/shm/shm_mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <new>
#include <string>

#include "base/file_limit.h"
#include "transport/file_message.h"

namespace annulus {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = 2 << 20;
constexpr uint64_t kEndsOffset = 256;
constexpr uint64_t kConsumedOffset = kEndsOffset + 2 * sizeof(ShmEnd);
constexpr uint64_t kRingsOffset = kConsumedOffset + 2 * sizeof(ShmCounter);
static_assert(sizeof(ShmHeader) <= kEndsOffset && kRingsOffset % alignof(ShmDescriptor) == 0);

// Fewest entries of a ring: enough for small slices to run ahead of a receiver that looks away for a few microseconds;
// 16 KiB per direction.
constexpr uint64_t kMinRingEntries = 64;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

Status CheckBounds(uint64_t slots, uint64_t slot_bytes, Code code) {
  if (slots < 1 || slots > kShmMaxSlots) {
    return {code, "shared memory: " + std::to_string(slots) + " slots, where 1 to " + std::to_string(kShmMaxSlots) +
                      " are allowed"};
  }
  if (slot_bytes < 1 || slot_bytes > kShmMaxSlotBytes) {
    return {code, "shared memory: slots of " + std::to_string(slot_bytes) + " bytes, where 1 to " +
                      std::to_string(kShmMaxSlotBytes) + " are allowed"};
  }
  return Status();
}

}  // namespace

ShmLayout ShmLayout::For(uint32_t slots, uint64_t slot_bytes) {
  ShmLayout layout;
  layout.slots = slots;
  layout.slot_bytes = slot_bytes;
  layout.slot_stride = RoundUp(slot_bytes, slot_bytes < kPageBytes ? kShmLinePair : kPageBytes);
  layout.ring_entries = std::bit_ceil(std::max<uint64_t>(kMinRingEntries, 2 * uint64_t{slots}));
  layout.return_entries = std::bit_ceil(uint64_t{slots});
  const uint64_t set_bytes = layout.slots * layout.slot_stride;
  layout.huge = set_bytes >= kHugePageBytes;
  uint64_t offset = kRingsOffset;
  for (uint64_t& ring : layout.ring_offset) {
    ring = offset;
    offset += layout.ring_entries * sizeof(ShmDescriptor);
  }
  for (uint64_t& returns : layout.return_offset) {
    returns = offset;
    offset = RoundUp(offset + layout.return_entries * sizeof(ShmReturn), kShmLinePair);
  }
  for (uint64_t& claims : layout.claims_offset) {
    claims = offset;
    offset = RoundUp(offset + layout.slots * sizeof(ShmClaim), kShmLinePair);
  }
  layout.rings_end = offset;
  for (uint64_t& slots_offset : layout.slots_offset) {
    offset = RoundUp(offset, layout.huge ? kHugePageBytes : kPageBytes);
    slots_offset = offset;
    offset += set_bytes;
  }
  layout.total_bytes = RoundUp(offset, kPageBytes);
  return layout;
}

Status ShmMapping::Create(int slots, size_t slot_bytes, std::unique_ptr<ShmMapping>* mapping) {
  ANNULUS_RETURN_IF_ERROR(CheckBounds(slots < 0 ? 0 : slots, slot_bytes, Code::kInvalidArgument));
  const int fd = memfd_create("annulus", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Status::System("memfd_create", errno);
  std::unique_ptr<ShmMapping> made(new ShmMapping(fd));
  made->layout_ = ShmLayout::For(static_cast<uint32_t>(slots), slot_bytes);
  const FileLimitGuard guard;
  if (ftruncate(fd, static_cast<off_t>(made->layout_.total_bytes)) != 0) {
    const int error = errno;
    return Status::System(
        "ftruncate of a memory file to " + std::to_string(made->layout_.total_bytes) + " bytes" + FileLimitText(error),
        error);
  }
  if (fcntl(fd, F_ADD_SEALS, kSeals) != 0) return Status::System("sealing a memory file", errno);
  ANNULUS_RETURN_IF_ERROR(made->Map());
  if (getrandom(&made->nonce_, sizeof(made->nonce_), 0) != static_cast<ssize_t>(sizeof(made->nonce_)))
    return Status::System("getrandom", errno);
  // New pages read as zeros. For the rings that means empty.
  new (made->base_)
      ShmHeader{kShmMagic, kShmVersion, made->layout_.slots, slot_bytes, made->layout_.total_bytes, made->nonce_};
  // Until another process opens the file, this one may have both ends.
  for (const int side : {0, 1}) made->TellPlace(side);
  *mapping = std::move(made);
  return Status();
}

Status ShmMapping::Open(int fd, std::unique_ptr<ShmMapping>* mapping) {
  std::unique_ptr<ShmMapping> opened(new ShmMapping(fd));
  struct stat file;
  if (fstat(fd, &file) != 0) return Status::System("fstat of a peer's memory file", errno);
  if (!IsShareableFile(fd)) {
    return {Code::kProtocol, "shared memory: what the peer sent is no memory file sealed against shrinking"};
  }
  // The header is read, not mapped, before its size is known to be right: the copy cannot change during the checks.
  ShmHeader header;
  if (pread(fd, &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header))) {
    return {Code::kProtocol, "shared memory: the peer's memory file is shorter than its header"};
  }
  if (header.magic != kShmMagic) return {Code::kProtocol, "shared memory: wrong magic number in the header"};
  if (header.version != kShmVersion) {
    return {Code::kProtocol, "shared memory: the peer's format has version " + std::to_string(header.version) +
                                 ", this rank's " + std::to_string(kShmVersion)};
  }
  ANNULUS_RETURN_IF_ERROR(CheckBounds(header.slots, header.slot_bytes, Code::kProtocol));
  opened->layout_ = ShmLayout::For(header.slots, header.slot_bytes);
  const uint64_t total_bytes = opened->layout_.total_bytes;
  if (header.total_bytes != total_bytes || static_cast<uint64_t>(file.st_size) != total_bytes) {
    return {Code::kProtocol, "shared memory: the peer's memory file has " + std::to_string(file.st_size) +
                                 " bytes and its header says " + std::to_string(header.total_bytes) + ", where " +
                                 std::to_string(total_bytes) + " belong"};
  }
  ANNULUS_RETURN_IF_ERROR(opened->Map());
  opened->nonce_ = header.nonce;
  opened->TellPlace(1);  // The lower rank creates the file.
  *mapping = std::move(opened);
  return Status();
}

ShmMapping::~ShmMapping() {
  registered_ = SlotRegistration();
  CloseFd();
  if (base_ != nullptr) munmap(base_, layout_.total_bytes);
}

void ShmMapping::CloseFd() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

// Maps the file at an address that suits 2 MiB pages: reserves too much, maps within it, gives back the rest.
Status ShmMapping::Map() {
  const uint64_t unit = layout_.huge ? kHugePageBytes : kPageBytes;
  const uint64_t reserved = RoundUp(layout_.total_bytes, unit) + unit;
  void* reservation = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reservation == MAP_FAILED) {
    return Status::System("reserving " + std::to_string(reserved) + " bytes of addresses for shared memory", errno);
  }
  std::byte* const begin = static_cast<std::byte*>(reservation);
  std::byte* const end = begin + reserved;
  std::byte* const base = reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<uintptr_t>(begin), unit));
  if (mmap(base, layout_.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(reservation, reserved);
    return Status::System("mapping " + std::to_string(layout_.total_bytes) + " bytes of shared memory", error);
  }
  if (base > begin) munmap(begin, static_cast<size_t>(base - begin));
  std::byte* const mapped_end = base + layout_.total_bytes;
  if (end > mapped_end) munmap(mapped_end, static_cast<size_t>(end - mapped_end));
  base_ = base;
  if (layout_.huge) {
    // Huge pages need fewer address translations. A kernel without huge pages for shared memory refuses, which costs
    // speed only.
    const uint64_t slots_offset = layout_.slots_offset[0];
    (void)madvise(base_ + slots_offset, layout_.total_bytes - slots_offset, MADV_HUGEPAGE);
  }
  return Status();
}

ShmEnd* ShmMapping::end(int side) const { return reinterpret_cast<ShmEnd*>(base_ + kEndsOffset) + side; }

std::span<std::byte> ShmMapping::slots() const {
  return {base_ + layout_.slots_offset[0], base_ + layout_.total_bytes};
}

Status ShmMapping::RegisterSlots(SlotMemory* memory) {
  return SlotRegistration::Make(memory, slots().data(), slots().size(), &registered_);
}

ShmDirection ShmMapping::direction(int sending_side) const {
  ShmDirection direction;
  direction.ring = reinterpret_cast<ShmDescriptor*>(base_ + layout_.ring_offset[sending_side]);
  direction.ring_entries = layout_.ring_entries;
  direction.returns = reinterpret_cast<ShmReturn*>(base_ + layout_.return_offset[sending_side]);
  direction.return_entries = layout_.return_entries;
  direction.claims = reinterpret_cast<ShmClaim*>(base_ + layout_.claims_offset[sending_side]);
  direction.consumed = &(reinterpret_cast<ShmCounter*>(base_ + kConsumedOffset) + sending_side)->value;
  direction.slots = base_ + layout_.slots_offset[sending_side];
  direction.num_slots = layout_.slots;
  direction.slot_bytes = layout_.slot_bytes;
  direction.slot_stride = layout_.slot_stride;
  return direction;
}

}  // namespace annulus
