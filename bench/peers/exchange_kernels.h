// The two loops over memory that the shared memory limit is made of, for this machine's vector unit.
//
// Threads: plain functions.
#pragma once

#include <cstddef>

namespace annulus::peers {

inline constexpr int kMaxOthers = 15;

// Which stores go around the caches; those need addresses aligned to 64 bytes.
struct Streaming {
  bool output = false;
  bool slot = false;
};

// output[i] = own[i] + others[0][i] + others[1][i] ..., and slot[i] the same unless `slot` is null. `output` may be
// `own`.
void Fold(const float* own, const float* const* others, int num_others, float* output, float* slot, size_t count,
          Streaming streaming);

// `count` floats; `stream`: around the caches.
void Move(const float* from, float* to, size_t count, bool stream);

// Makes the streaming stores of this thread visible before what it stores next.
void FinishStreaming();

}  // namespace annulus::peers
