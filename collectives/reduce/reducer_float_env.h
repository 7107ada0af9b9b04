// The floating-point environment of a reduction: round to nearest, subnormals kept, no traps, whatever the caller set.
//
// A program may have turned on flush-to-zero (frameworks and -ffast-math do) or another rounding on some of its
// threads, and collectives run on the thread that calls; ranks would then disagree on bits.
//
// Threads: the environment belongs to the thread that constructs the object.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace annulus {

// Sets the default environment, and gives the caller's back, its exception flags included.
class DefaultFloatEnv {
 public:
  DefaultFloatEnv(const DefaultFloatEnv&) = delete;
  DefaultFloatEnv& operator=(const DefaultFloatEnv&) = delete;

#if defined(__SSE__)
  DefaultFloatEnv() : saved_(_mm_getcsr()) {
    if (saved_ != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultFloatEnv() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // All exceptions masked, everything else off.
  const unsigned saved_;
#else
  DefaultFloatEnv() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnv() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
};

}  // namespace annulus
