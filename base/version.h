// The library's version. collectives/annulus.h tells it to users; api compares the two at compile time.
//
// Threads: constants.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace annulus {

// Major, minor and patch number.
using LibraryVersion = std::array<uint16_t, 3>;

inline constexpr LibraryVersion kLibraryVersion = {0, 9, 0};

// Whether ranks with these versions may work together. Another minor version may choose or schedule differently.
constexpr bool WorkTogether(const LibraryVersion& left, const LibraryVersion& right) {
  return left[0] == right[0] && left[1] == right[1];
}

// "0.9.0".
inline std::string VersionText(const LibraryVersion& version) {
  return std::to_string(version[0]) + "." + std::to_string(version[1]) + "." + std::to_string(version[2]);
}

}  // namespace annulus
