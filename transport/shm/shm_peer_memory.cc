#include "transport/shm/shm_peer_memory.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace annulus {
namespace {

void* PointerOf(uint64_t address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }

void* EndOf(const iovec& piece) { return static_cast<std::byte*>(piece.iov_base) + piece.iov_len; }

}  // namespace

ShmPeerMemory::ShmPeerMemory(pid_t process, uint64_t nonce_address, const ShmNonce& nonce, ShmEnd* own_end)
    : process_(process), nonce_address_(nonce_address), nonce_(nonce), own_end_(own_end), works_(process > 0) {
  if (works_) Read({});
}

bool ShmPeerMemory::Read(std::span<const Part> parts) {
  ANNULUS_CHECK(parts.size() <= kMostParts);
  if (!works_) return false;
  std::array<iovec, kMostParts + 1> local;
  std::array<iovec, kMostParts + 1> remote;
  size_t pieces = 0;
  size_t bytes = 0;
  for (const Part& part : parts) {
    bytes += part.bytes;
    // The kernel looks up each piece's pages by themselves.
    if (pieces > 0 && EndOf(local[pieces - 1]) == part.to && EndOf(remote[pieces - 1]) == PointerOf(part.address)) {
      local[pieces - 1].iov_len += part.bytes;
      remote[pieces - 1].iov_len += part.bytes;
      continue;
    }
    local[pieces] = {part.to, part.bytes};
    remote[pieces++] = {PointerOf(part.address), part.bytes};
  }
  // The nonce comes last: what has gone wrong before leaves it out.
  ShmNonce nonce{};
  local[pieces] = {&nonce, sizeof(nonce)};
  remote[pieces++] = {PointerOf(nonce_address_), sizeof(nonce)};
  const bool is_timed = bytes >= ShmPace::kLeastTimed && IsTimed(loans_in_row_++);
  const Nanoseconds begin = is_timed ? Now() : 0;
  const ssize_t copied = process_vm_readv(process_, local.data(), pieces, remote.data(), pieces, 0);
  works_ = copied == static_cast<ssize_t>(bytes + sizeof(nonce)) && nonce == nonce_;
  slots_in_row_ = 0;
  if (is_timed && works_) {
    loans_.Add(bytes, Now() - begin);
    if (own_end_ != nullptr) Tell(loans_, &own_end_->loan_pace);
  }
  return works_;
}

void ShmPeerMemory::EndTimedSlot(size_t bytes) {
  const Nanoseconds now = Now();
  const Nanoseconds took = now - std::exchange(slot_begun_, 0);
  if (bytes < ShmPace::kLeastTimed) return;
  slots_.Add(bytes, took);
  if (own_end_ != nullptr) Tell(slots_, &own_end_->slot_pace);
}

// Small changes are not told: the peer would have to fetch the line.
void ShmPeerMemory::Tell(const ShmPace& pace, std::atomic<uint32_t>* word) {
  const uint32_t told = word->load(std::memory_order_relaxed);
  const uint32_t now = pace.value();
  if (std::max(told, now) - std::min(told, now) > told / 8) word->store(now, std::memory_order_relaxed);
}

}  // namespace annulus
