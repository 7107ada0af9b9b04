// ShmPeerMemory: copies from the memory of the peer's process by a system call (process_vm_readv), where the kernel
// permits that. Processes of one user may usually read each other; Yama, seccomp filters, user namespaces and
// prctl(PR_SET_DUMPABLE) can forbid it.
//
// The number of a process says little: it comes from the link's socket, but another process may have it once the peer
// is gone, and it means something else in another namespace. So each call also reads the link's nonce, at the address
// at which the peer says that it has mapped the link's file. The kernel looks the process up once for both.
//
// The peer's memory stays as trusted as what the peer sends: the caller checks the length, and what the address is
// matters to the peer alone.
//
// It also times what it reads, and what is read out of slots in its place, and tells the peer, which chooses
// (ShmLoanChoice).
//
// Threads: as the endpoint.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "transport/shm/shm_format.h"
#include "transport/shm/shm_loan_choice.h"

namespace annulus {

class ShmPeerMemory {
 public:
  // `process`: the peer, or 0 if it is not known, or not to be read. `nonce_address`: where it has the nonce. Tries to
  // read that. `own_end`, which outlives it, is told how long reads take; null: nobody is.
  ShmPeerMemory(pid_t process, uint64_t nonce_address, const ShmNonce& nonce, ShmEnd* own_end = nullptr);

  // Whether Read has succeeded so far.
  bool works() const { return works_; }
  struct Part {
    std::byte* to = nullptr;
    uint64_t address = 0;
    size_t bytes = 0;
  };
  static constexpr size_t kMostParts = 16;
  // Copies from the peer's memory, up to kMostParts in one call. Returns false if not all of it could be copied, or not
  // from the peer; it is not tried again then.
  bool Read(std::span<const Part> parts);

  // A slice of so many bytes lies in a slot, and is to be copied from there; that has been done. Of several that came
  // together at most one is timed; of many in a row, a sample.
  void BeginSlot(size_t bytes) {
    if (bytes < ShmPace::kLeastTimed || !works_) return;
    loans_in_row_ = 0;
    const uint32_t row = slots_in_row_++;
    // One that was looked at, and left for later, is not timed.
    slot_begun_ = row >= ShmPace::kColdSlots && IsTimed(row) ? Now() : 0;
  }
  void EndSlot(size_t bytes) {
    if (slot_begun_ != 0) EndTimedSlot(bytes);
  }

 private:
  // Reading the clock takes 25 ns, copying 64 KiB from a near processor's cache 700. So of many slices in a row that
  // went the same way only some are timed.
  static constexpr uint32_t kSlicesPerLook = 8;
  static bool IsTimed(uint32_t row) { return row < 2 * ShmPace::kColdSlots || row % kSlicesPerLook == 0; }

  void EndTimedSlot(size_t bytes);
  static void Tell(const ShmPace& pace, std::atomic<uint32_t>* word);

  const pid_t process_;
  const uint64_t nonce_address_;
  const ShmNonce nonce_;
  ShmEnd* const own_end_;
  ShmPace slots_;
  ShmPace loans_;
  Nanoseconds slot_begun_ = 0;  // 0: nothing is timed.
  uint32_t slots_in_row_ = 0;   // Slices through slots since the latest loan.
  uint32_t loans_in_row_ = 0;   // Calls that read loans since the latest slice through a slot.
  bool works_;
};

}  // namespace annulus
