#include "tests/soak/rounds.h"

#include <cstdlib>

#include "base/check.h"

namespace annulus {

uint64_t Rounds(uint64_t fixed, uint64_t full) {
  ANNULUS_CHECK(fixed > 0 && fixed <= full);
  if (std::getenv("TEST_SOAK") != nullptr) return full;
  return kSanitized && fixed >= 50 ? fixed / 5 : fixed;
}

}  // namespace annulus
