#include "tests/soak/rounds.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"

namespace annulus {

uint64_t Rounds(uint64_t fixed, uint64_t full) {
  ANNULUS_CHECK(fixed > 0 && fixed <= full);
  if (std::getenv("TEST_SOAK") != nullptr) return full;
  constexpr uint64_t kLeast = 5;
  return kSanitized && fixed > kLeast ? std::max(kLeast, fixed / 10) : fixed;
}

}  // namespace annulus
