#include "collectives/calls/request.h"

namespace annulus {

void Request::ClearMemory() {
  numbers.clear();
  if (numbers.capacity() > kMostKeptNumbers) numbers = std::vector<size_t>();
  label.clear();
  keep.reset();
  held.clear();
  refusal.reset();
  if (!segments.empty()) segments.Clear();
  members = std::vector<Request*>();
}

}  // namespace annulus
