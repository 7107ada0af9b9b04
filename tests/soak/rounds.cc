#include "tests/soak/rounds.h"

#include <cstdlib>

#include "base/check.h"

namespace annulus {

uint64_t Rounds(uint64_t fixed, uint64_t full) {
  ANNULUS_CHECK(fixed > 0 && fixed <= full);
  return std::getenv("TEST_SOAK") != nullptr ? full : fixed;
}

}  // namespace annulus
