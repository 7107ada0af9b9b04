#include "transport/verbs/verbs_copies.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace annulus {
namespace {

// Time between two looks at whether the GPU still works: each is a call of its driver. A piece takes some microseconds.
constexpr Nanoseconds kCheckInterval = 10 * kMillisecond;

// Time that a GPU has to end a piece that nobody wants any more. One that needs longer reads memory whose owner has it
// back. What it writes to stays until the object goes, which waits for it.
constexpr Nanoseconds kMostGivingUp = kSecond;

}  // namespace

VerbsCopies::VerbsCopies(VerbsRegions* regions, std::span<std::byte> room)
    : regions_(regions), word_(reinterpret_cast<uint32_t*>(room.data())), room_(room.subspan(kWordBytes)) {}

VerbsCopies::~VerbsCopies() {
  GiveUp();
  if (left_to_ >= 0 && !IsThere()) regions_->AwaitCopies(left_to_);
}

Status VerbsCopies::Copy(VerbsUse use, const std::byte* data, size_t bytes, const std::byte** copy) {
  if (status_.ok() && !begun_) status_ = Begin(bytes);
  while (status_.ok()) {
    if (piece_ > 0) {
      if (!IsThere()) {
        if (Now() < next_check_) return Status::WouldBlock();
        next_check_ = DeadlineAfter(kCheckInterval);
        status_ = regions_->CheckCopies(use);
        if (status_.ok()) return Status::WouldBlock();
        break;
      }
      std::memcpy(copies_.back().get() + copied_, room_.data(), piece_);
      copied_ += piece_;
      piece_ = 0;
    }
    if (copied_ == bytes) {
      begun_ = false;
      *copy = copies_.back().get();
      return Status();
    }
    status_ = BeginPiece(use, data + copied_, std::min(bytes - copied_, room_.size()));
  }
  return status_;
}

Status VerbsCopies::Begin(size_t bytes) {
  std::unique_ptr<std::byte[]> copy(new (std::nothrow) std::byte[bytes]);
  if (copy == nullptr) return {Code::kOutOfMemory, "no memory for a copy of a slice in a GPU's memory"};
  copies_.push_back(std::move(copy));
  begun_ = true;
  copied_ = 0;
  return Status();
}

Status VerbsCopies::BeginPiece(VerbsUse use, const std::byte* data, size_t bytes) {
  __atomic_store_n(word_, 0, __ATOMIC_RELAXED);
  const Status status = regions_->CopyOut(use, data, bytes, room_.data(), word_);
  if (!status.ok()) {
    return {Code::kSystem, "a slice in a GPU's memory cannot be sent again: " + status.message()};
  }
  piece_ = bytes;
  device_ = regions_->DeviceOf(use);
  next_check_ = DeadlineAfter(kCheckInterval);
  return Status();
}

void VerbsCopies::GiveUp() {
  const Deadline end = DeadlineAfter(kMostGivingUp);
  while (piece_ > 0 && status_.ok() && !IsThere() && Now() < end) {
  }
  if (status_.ok() && piece_ > 0 && !IsThere()) left_to_ = device_;
  piece_ = 0;
  if (status_.ok()) status_ = {Code::kAborted, "the link goes on no more"};
}

}  // namespace annulus
