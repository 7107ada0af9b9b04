// The instruction sets for which the host reducer is compiled. Included before Highway's foreach_target.h.
#pragma once

// x86 machines without AVX2 (before 2013) get the portable code: each further target would cost every build as much
// again.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
