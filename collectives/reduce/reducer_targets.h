// The instruction sets for which the host reducer is compiled. Included before Highway's foreach_target.h.
#pragma once

// x86 machines without AVX2 (before 2013) use the portable code: each further target would add as much build time
// again.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
