#include "tests/soak/rounds.h"

#include <cstdlib>

#include "base/check.h"

namespace annulus {

int Rounds(int fixed, int full) {
  ANNULUS_CHECK(fixed > 0 && fixed <= full);
  return std::getenv("TEST_SOAK") != nullptr ? full : fixed;
}

}  // namespace annulus
