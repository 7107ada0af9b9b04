// ShmSettings: the user's settings of shared memory links; each one is a row of shm_settings.inc.
//
// Threads: plain values.
#pragma once

#include <cstdint>

#include "base/settings.h"

namespace annulus {

inline constexpr const char* kShmName = "shm";

// How slots that another process reads are written.
enum class SlotStores : uint8_t {
  kAuto,       // Depends on the distance of the peer's processor.
  kPlain,      // Stores into this processor's caches.
  kStreaming,  // Stores past the caches.
};

inline constexpr const char* kSlotStoresWords[] = {"auto", "plain", "streaming"};  // Indexed by SlotStores.

struct ShmSettings {
#define ANNULUS_SETTING(name, Type, unset, ...) Type name = unset;
#include "transport/shm/shm_settings.inc"
#undef ANNULUS_SETTING
};

}  // namespace annulus
