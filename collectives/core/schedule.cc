#include "collectives/core/schedule.h"

#include <algorithm>

namespace annulus {

size_t ChunkElements(size_t count, int nranks, uint32_t chunk) {
  return count / nranks + (chunk < count % nranks ? 1 : 0);
}

size_t ChunkBegin(size_t count, int nranks, uint32_t chunk) {
  return count / nranks * chunk + std::min<size_t>(chunk, count % nranks);
}

}  // namespace annulus
