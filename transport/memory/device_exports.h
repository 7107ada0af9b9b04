// DeviceExports: memory of this process's devices, as another device of the machine, such as a network card, can be
// given it: by a descriptor of a dma-buf. The CPU cannot touch it.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace annulus {

class DeviceSharing;

// An allocation of a device.
struct DeviceRange {
  uint64_t id = 0;  // No two allocations of the process have the same, not even at the same address.
  std::byte* begin = nullptr;
  size_t bytes = 0;
  int device = -1;  // The number of the device whose memory it is.
};

// What a device sees of what others write to its memory.
enum class DeviceWrites : uint8_t {
  kSeen,     // All, at once.
  kFlushed,  // What was written before a flush.
  kHidden,   // Nothing for certain.
};

// How a device reaches the memory of another one of the machine.
enum class DeviceReach : uint8_t {
  kUnknown,  // Such as when this process does not see the other one.
  kNone,     // Not at all.
  kPci,      // By PCIe.
  kLink,     // By a link of their own, such as NVLink.
};

class DeviceExports {
 public:
  // Why Export fails for all memory, as when the driver lacks a function; "" when it may succeed. Constant.
  virtual std::string missing() const = 0;

  // Sets *range to the allocation in which all of [data, data + bytes) lies. Returns false when there is none that can
  // be exported; range->device then tells the device whose memory it is all the same, if it is one's.
  virtual bool RangeOf(const std::byte* data, size_t bytes, DeviceRange* range) const = 0;

  // Sets *fd to a descriptor of a dma-buf, which the caller closes, and *offset to where the range begins in it. The
  // memory stays as long as some device uses the dma-buf, even if it is freed.
  // Errors: kUnsupported when the device has no such descriptors; kSystem or kOutOfMemory of the device.
  virtual Status Export(const DeviceRange& range, int* fd, uint64_t* offset) const = 0;

  // Where the device is on the machine's PCI, as the system names it: "0000:17:00.0"; "" when that is not known.
  virtual std::string PciAddress(int device) const = 0;

  // The number of the device that the calling thread uses; -1: none.
  virtual int CurrentDevice() const = 0;
  // For people: "NVIDIA H200"; "" when that is not known.
  virtual std::string Name(int device) const = 0;
  // How a device reaches the memory of another one, at that address on PCI.
  virtual DeviceReach ReachOf(int device, const std::string& pci_address) const = 0;

  // What a device, of which something was exported, sees of what others write to its memory; constant.
  virtual DeviceWrites WritesTo(int device) const = 0;
  // Lets the later work of such a device see what others have written to its memory, up to now; for kFlushed.
  // Errors: kSystem or kOutOfMemory of the device.
  virtual Status FlushWrites(int device) const = 0;

  // Begins to copy memory of that device, of which something was exported, to slots (slot_memory.h), and returns at
  // once: it waits neither for work of the device nor for another thread of the process that does. *done, in slots too,
  // becomes 1 when the copy is there. Until then all of it stays. Errors: kUnsupported when the device does not reach
  // the slots; kSystem or kOutOfMemory of the device.
  virtual Status CopyOut(int device, const std::byte* data, size_t bytes, std::byte* slots, uint32_t* done) const = 0;
  // What ended such copies, so that they never get done; OK when nothing did. Errors: kSystem of the device.
  virtual Status CheckCopies(int device) const = 0;
  // Waits until none of them is under way, however long the device is busy otherwise. Not where a gate might have to be
  // opened by this thread.
  virtual void AwaitCopies(int device) const = 0;

  // Takes down, for people, how links move memory of the devices where that is not the best way: "memory of GPUs over
  // verbs: by copies: ..."; "": it is, or there are no such links any more. `links`: whose links those are, by their
  // reactor. Each call replaces what was told of the same links.
  virtual void TellWay(const void* links, const std::string& way) const = 0;

  // How the processes of the host let their devices read this memory where it is (device_sharing.h); null: not at all.
  // Constant.
  virtual DeviceSharing* sharing() const { return nullptr; }

 protected:
  ~DeviceExports() = default;
};

}  // namespace annulus
