// StreamProgram: what a stream of a device does for one call, in this order: copies, reductions, words that tell the
// CPU how far it has come, and gates at which it waits for the CPU. All of it is known when the call is submitted;
// whoever drives the call only reads and stores words.
//
// Threads: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/reduce/reducer.h"

namespace annulus {

// A part of a buffer, and its place in the staging memory.
struct StreamCopy {
  std::byte* buffer = nullptr;
  std::byte* staged = nullptr;
  size_t bytes = 0;
};

struct StreamStep {
  enum class Kind : uint8_t {
    kCopy,   // `bytes` from `from` to `to`.
    kFold,   // The next `number` folds, all together.
    kSay,    // Step `number` is reached.
    kAwait,  // Waits for the gate of step `number`.
  };
  Kind kind = Kind::kCopy;
  uint32_t number = 0;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
  bool from_host = false;  // A copy's source is in host memory.
};

struct StreamProgram {
  static constexpr uint32_t kMostFolds = 16;  // Together.

  std::vector<StreamStep> steps;
  std::vector<SliceOp> folds;  // In the order of the steps. Their lists lie in memory that the device reads.
  uint32_t* done = nullptr;    // kMostFolds words that the device may write.
  uint32_t last = 0;           // The last step's number.

  bool empty() const { return steps.empty(); }
  void Clear() {
    steps.clear();
    folds.clear();
  }
  void Copy(std::byte* to, const std::byte* from, size_t bytes, bool from_host = false) {
    steps.push_back({StreamStep::Kind::kCopy, 0, to, from, bytes, from_host});
  }
  void Add(StreamStep::Kind kind, uint32_t number) { steps.push_back({kind, number, nullptr, nullptr, 0, false}); }
};

}  // namespace annulus
