// VerbsCopies: copies in host memory of slices that lie in a GPU's, for a link that goes on elsewhere.
//
// The GPU copies a piece at a time into memory that was pinned when the link was made, and the CPU takes it from there.
// Pinning more could wait for streams, which may wait for the very thread that is here, and so could a copy that the
// driver waits for. So nothing here waits for the GPU: whoever drives the link asks again.
//
// Threads: as the endpoint. Allocates for each slice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "transport/verbs/device/verbs_regions.h"

namespace annulus {

class VerbsCopies {
 public:
  // `room`: slots (transport/memory/slot_memory.h) that nobody else uses once Copy has been called. Pieces are as large
  // as it is, but for a word.
  VerbsCopies(VerbsRegions* regions, std::span<std::byte> room);
  // Waits for the GPU. The room and the regions must still be there.
  ~VerbsCopies();
  VerbsCopies(const VerbsCopies&) = delete;
  VerbsCopies& operator=(const VerbsCopies&) = delete;

  // Sets *copy to a copy of `bytes` of a region in use, which stays until it is dropped. Slices are copied one after
  // the other: who asks for one asks for the same until it is there. Errors: kWouldBlock  it is not there yet.
  //         others       permanent: kOutOfMemory, kUnsupported or kSystem of the GPU.
  Status Copy(VerbsUse use, const std::byte* data, size_t bytes, const std::byte** copy);
  // The GPU is copying: that Copy will succeed, nothing else tells.
  bool is_under_way() const { return piece_ > 0; }
  // Drops the oldest one.
  void DropFirst() { copies_.pop_front(); }
  // Gives up the slice that is being copied. Its data stay lent until the GPU has read what it was told to, or a moment
  // has passed.
  void GiveUp();

 private:
  // For the word, by which the GPU tells that a piece is there: a cache line.
  static constexpr size_t kWordBytes = 64;

  Status Begin(size_t bytes);
  Status BeginPiece(VerbsUse use, const std::byte* data, size_t bytes);
  // Whether the piece under way is there.
  bool IsThere() const { return __atomic_load_n(word_, __ATOMIC_ACQUIRE) != 0; }

  VerbsRegions* const regions_;
  uint32_t* const word_;
  const std::span<std::byte> room_;  // Behind the word.
  std::deque<std::unique_ptr<std::byte[]>> copies_;
  bool begun_ = false;  // The last one of them is not whole.
  size_t copied_ = 0;   // What of it is there, in bytes.
  size_t piece_ = 0;    // What the GPU is copying, in bytes.
  int device_ = -1;     // The GPU that copies,
  int left_to_ = -1;    // and one that was given up while it did.
  Nanoseconds next_check_ = 0;
  Status status_;
};

}  // namespace annulus
