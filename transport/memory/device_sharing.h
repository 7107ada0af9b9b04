// DeviceSharing: memory of devices that processes of a host let each other's devices read where it is. Its owner
// describes an allocation, and another process opens it for one of its own devices. The CPU cannot touch it.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace annulus {

struct DeviceRange;

// An allocation as its owner describes it. It travels between processes of one host as it is; only the devices' driver
// knows the meaning.
struct SharedDeviceMemory {
  std::array<std::byte, 128> bytes{};
};

class DeviceSharing {
 public:
  // Describes an allocation, as DeviceExports::RangeOf tells it. Errors: kUnsupported when other processes cannot reach
  // it; kSystem or kOutOfMemory of the device.
  virtual Status Describe(const DeviceRange& range, SharedDeviceMemory* shared) = 0;
  // How many allocations of this process were described to others so far, by whomever. As it grows, others may be in
  // the way that were freed: no process opens two at the same addresses.
  virtual uint64_t described() const = 0;

  // Sets *begin to where `device` finds an allocation of this or of another process, of `bytes` bytes at least, which
  // is checked. It stays until Close, even if its owner frees it, unless this process is the owner. May wait for work
  // of the device. Errors: kInvalidArgument when it is smaller; kUnsupported when the device does not reach it; kSystem
  // or kOutOfMemory of the device.
  virtual Status Open(int device, const SharedDeviceMemory& shared, size_t bytes, const std::byte** begin) = 0;
  // Once for each Open. No work of the device may read there any more.
  virtual void Close(int device, const std::byte* begin) = 0;

  // Whether the device can copy what was opened for it to slots (slot_memory.h). Errors: kUnsupported when it does not
  // reach them; kSystem of the device.
  virtual Status CheckSlots(int device, const std::byte* slots, size_t bytes) = 0;
  // Begins to copy what was opened for the device to slots, CheckCopies and AwaitCopies, all as DeviceExports has them.
  virtual Status CopyOut(int device, const std::byte* data, size_t bytes, std::byte* slots, uint32_t* done) = 0;
  virtual Status CheckCopies(int device) = 0;
  virtual void AwaitCopies(int device) = 0;

 protected:
  ~DeviceSharing() = default;
};

}  // namespace annulus
