// The name of verbs links, and the words and bounds of their settings: the rows of verbs_settings.inc.
//
// A retry count of 7, which verbs allows, is not offered: the soft-RoCE driver of Linux then retries for ever.
//
// Threads: constants.
#pragma once

#include <cstdint>

namespace annulus {

inline constexpr const char* kVerbsName = "verbs";

inline constexpr int64_t kLongestVerbsText = 63;      // An address is shorter.
inline constexpr int64_t kLongestVerbsDevices = 255;  // Eight names of some 30 characters.

// Whether memory of GPUs is used without a copy.
enum class VerbsDeviceMemory : uint8_t {
  kAuto,  // Unless card and GPU are far from each other.
  kOn,    // At any distance.
  kOff,   // Never.
};

inline constexpr const char* kVerbsDeviceMemoryWords[] = {"auto", "on", "off"};  // Indexed by VerbsDeviceMemory.

// Defaults: seven times 67 ms, and as much again for a device's own slack, until a peer that does not answer is lost.
inline constexpr int64_t kVerbsTimeout = 14;
inline constexpr int64_t kVerbsRetry = 6;

// Smallest slice that the peer reads from registered memory, in bytes. A READ costs another round trip, some
// microseconds, which is what copying this much takes; not measured on a card.
inline constexpr int64_t kVerbsReadBytes = 32 * 1024;

}  // namespace annulus
