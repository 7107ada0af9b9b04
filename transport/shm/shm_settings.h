// The name of shared memory links, and the words and bounds of their settings: the rows of shm_settings.inc.
//
// Threads: constants.
#pragma once

#include <cstdint>

namespace annulus {

inline constexpr const char* kShmName = "shm";

// How slots that another process reads are written.
enum class SlotStores : uint8_t {
  kAuto,       // Depends on the distance of the peer's processor.
  kPlain,      // Stores into this processor's caches.
  kStreaming,  // Stores past the caches.
};

// Whether large messages are copied once, by the kernel.
enum class KernelCopies : uint8_t {
  kAuto,  // Where it permits that.
  kOff,
};

// Whether slices in the memory of devices are read there by the peer's device.
enum class DeviceReads : uint8_t {
  kAuto,  // Where both devices and their driver allow it.
  kOff,
};

inline constexpr const char* kDeviceReadsWords[] = {"auto", "off"};                // Indexed by DeviceReads.
inline constexpr const char* kKernelCopiesWords[] = {"auto", "off"};               // Indexed by KernelCopies.
inline constexpr const char* kSlotStoresWords[] = {"auto", "plain", "streaming"};  // Indexed by SlotStores.

}  // namespace annulus
