// PieceWork: work on a range of bytes that a device does in pieces, one after the other.
//
// Threads: one at a time.
#pragma once

#include <cstddef>

#include "collectives/reduce/device.h"

namespace annulus {

class PieceWork {
 public:
  void Start(size_t bytes) {
    bytes_ = bytes;
    submitted_ = 0;
    ticket_ = Device::kCompleted;
  }

  bool done() const { return submitted_ == bytes_ && ticket_ == Device::kCompleted; }
  // Whether the device is working on it.
  bool pending() const { return ticket_ != Device::kCompleted; }

  // Continues as far as the device allows. submit(begin, &end, &ticket) submits the bytes from `begin` on, at most up
  // to `end`, and sets `end` to where they stop. Sets *moved when something changed.
  template <class Submit>
  Status Advance(Device* device, Submit submit, bool* moved) {
    for (;;) {
      if (pending()) {
        bool over = false;
        ANNULUS_RETURN_IF_ERROR(device->Poll(ticket_, &over));
        if (!over) return Status();
        ticket_ = Device::kCompleted;
        *moved = true;
      }
      if (submitted_ == bytes_) return Status();
      size_t end = bytes_;
      Status submitted = submit(submitted_, &end, &ticket_);
      if (submitted.would_block()) return Status();
      ANNULUS_RETURN_IF_ERROR(std::move(submitted));
      submitted_ = end;
      *moved = true;
    }
  }

 private:
  size_t bytes_ = 0;
  size_t submitted_ = 0;
  Device::Ticket ticket_ = Device::kCompleted;
};

}  // namespace annulus
