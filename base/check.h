// ANNULUS_CHECK: an invariant of this library. A false one is a bug here, so the process stops at once.
//
// Never for input from users or the wire: those get a Status.
#pragma once

#include <cstdio>
#include <cstdlib>

#define ANNULUS_CHECK(condition)                                                                   \
  do {                                                                                             \
    if (__builtin_expect(!(condition), 0)) {                                                       \
      std::fprintf(stderr, "annulus: check failed: %s (%s:%d)\n", #condition, __FILE__, __LINE__); \
      std::abort();                                                                                \
    }                                                                                              \
  } while (0)
