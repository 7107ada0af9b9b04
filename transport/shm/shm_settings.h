// ShmSettings: what users can set of shared memory links; each is a row of shm_settings.inc.
//
// Threads: plain values.
#pragma once

#include "base/settings.h"
#include "transport/transport.h"

namespace annulus {

inline constexpr const char* kShmName = "shm";

inline constexpr const char* kSlotStoresWords[] = {"auto", "plain", "streaming"};  // By SlotStores.

struct ShmSettings {
#define ANNULUS_SETTING(name, Type, unset, ...) Type name = unset;
#include "transport/shm/shm_settings.inc"
#undef ANNULUS_SETTING
};

}  // namespace annulus
