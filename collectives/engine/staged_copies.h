// StagedCopies: the copies between a device and the staging memory on which a collective is done in place of its
// buffers (calls/staged_buffers.h): the inputs before it, the outputs after it. The device works on them in the order
// of its queue; nothing waits.
//
// Threads: one at a time. Nothing allocates.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/status.h"
#include "collectives/reduce/domain_queue.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {

// What is copied for one collective. The lists are borrowed until it is done.
struct Staging {
  DomainQueue* queue = nullptr;  // The device's; null: nothing is staged.
  std::span<const StreamCopy> inputs;
  std::span<const StreamCopy> outputs;
};

class StagedCopies {
 public:
  enum class Direction { kFromDevice, kToDevice };

  // Begins other copies; those before are done.
  void Start(DomainQueue* queue, std::span<const StreamCopy> copies, Direction direction);
  // Moves them on as far as that goes without waiting. Sets *moved when something changed. Errors: the device's.
  Status Progress(bool* moved);
  bool done() const { return ended_ == copies_.size(); }

 private:
  static constexpr size_t kMostPending = 32;  // As many as the queue of a GPU takes.

  Status Submit(const StreamCopy& copy, Submission* submission);

  DomainQueue* queue_ = nullptr;
  std::span<const StreamCopy> copies_;
  Direction direction_ = Direction::kFromDevice;
  size_t begun_ = 0;
  size_t ended_ = 0;
  std::array<Submission, kMostPending> pending_;  // A ring, by number of the copy.
};

}  // namespace annulus
