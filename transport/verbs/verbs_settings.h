// VerbsSettings: the user's settings of verbs links; each one is a row of verbs_settings.inc.
//
// A retry count of 7, which verbs allows, is not offered: the soft-RoCE driver of Linux then retries for ever.
//
// Threads: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "base/settings.h"

namespace annulus {

inline constexpr const char* kVerbsName = "verbs";

inline constexpr int64_t kLongestVerbsText = 63;  // IBV_SYSFS_NAME_MAX less the terminator; an address is shorter.

// Defaults: seven times 67 ms, and as much again for a device's own slack, until a peer that does not answer is lost.
inline constexpr int64_t kVerbsTimeout = 14;
inline constexpr int64_t kVerbsRetry = 6;

struct VerbsSettings {
#define ANNULUS_SETTING(name, Type, unset, ...) Type name = unset;
#include "transport/verbs/verbs_settings.inc"
#undef ANNULUS_SETTING
};

}  // namespace annulus
