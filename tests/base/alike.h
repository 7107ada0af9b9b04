// Memory whose elements are all the same, written and compared by functions of the C library: under a sanitizer, loops
// over elements cost more than what is tested.
//
// Threads: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace annulus {

// Writes `value` into all of [data, data + count).
template <class T>
void FillWith(T* data, size_t count, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (count == 0) return;
  data[0] = value;
  for (size_t done = 1; done < count; done *= 2)
    std::memcpy(data + done, data, std::min(done, count - done) * sizeof(T));
}

// Whether all of [data, data + count) have the bits of `value`.
template <class T>
bool AllAre(const T* data, size_t count, T value) {
  static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>);
  if (count == 0) return true;
  // Then each has the bits of the one before it.
  return std::memcmp(data, &value, sizeof value) == 0 && std::memcmp(data, data + 1, (count - 1) * sizeof(T)) == 0;
}

}  // namespace annulus
