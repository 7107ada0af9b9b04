// Little-endian integers in byte buffers, as all wire formats here have them.
//
// Threads: plain functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace annulus {

// Every machine that Annulus runs on is little-endian, so the wire's order is the memory's.
static_assert(std::endian::native == std::endian::little, "a big-endian machine needs byte swaps here");

template <class Integer>
inline void StoreLittle(std::byte* to, Integer value) {
  std::memcpy(to, &value, sizeof(value));
}

template <class Integer>
inline Integer LoadLittle(const std::byte* from) {
  Integer value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace annulus
