// Rounds: how often a test repeats something random. Every run takes a small fixed share, the same rounds each time;
// `./test soak` takes all of them. A target that calls it is tagged "soak" in its BUILD file.
//
// Threads: any.
#pragma once

#include <cstdint>

namespace annulus {

// `fixed` rounds in every run, `full` rounds under `./test soak` (--config=soak, which sets TEST_SOAK). Seeds count up
// from the same start, so the fixed rounds are the first of the full ones. In a sanitizer's build, which takes five to
// thirty times as long and looks at each step, the fixed share is a tenth of that, but not below 5.
uint64_t Rounds(uint64_t fixed, uint64_t full);

// Whether this is a sanitizer's build.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Whether it is the thread sanitizer's, which looks at what threads share, and at nothing else.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

}  // namespace annulus
