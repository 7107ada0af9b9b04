// SharedMemory: how the processes of a host reach each other's memory of a domain, so that one of them can work on the
// buffers of all.
//
// Threads: one at a time, the one that drives the communicator.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "cuda_kernels/reduce_types.h"

namespace annulus {

// Where memory lies, for the other processes of the host. It travels between ranks as it is: they have the same build.
struct SharedPlace {
  uint8_t handle[64] = {};  // Handle of the allocation; only the domain knows its meaning.
  uint8_t device[16] = {};  // Identity of the device; ranks that share one have the same.
  uint64_t process = 0;     // Different for each process.
  uint64_t begin = 0;       // Address of the allocation in its process.
  uint64_t bytes = 0;       // Size of the allocation.
  uint64_t offset = 0;      // Where the memory begins in the allocation.
  uint64_t files = 0;       // Descriptors that another process needs besides, to reach it.
  uint64_t from = 0;        // Who sends these.
};

// Where a process waits for descriptors. It travels as a place does.
struct SharedAddress {
  uint64_t name = 0;
  uint64_t secret = 0;  // Who knows it may send some.
};

class SharedMemory {
 public:
  // Describes `bytes` bytes at `memory`, which is of the domain. Returns the number of its device, -1 when other
  // processes cannot reach it.
  virtual int Export(const std::byte* memory, size_t bytes, SharedPlace* place) = 0;

  // Whether that device can reduce what others have exported.
  virtual bool CanReduce(int device, DataType type, ReduceOp op) const = 0;

  // Sets *memory to where `device` finds `bytes` bytes that a rank of this host has exported. It stays valid until
  // Release. Errors: kInvalidArgument when the place has not so many bytes; kUnsupported or kSystem when it
  // cannot be reached; kInProgress when it can as soon as its owner has sent the descriptors to what Await gives.
  virtual Status Import(int device, const SharedPlace& place, size_t bytes, std::byte** memory) = 0;

  // From now on until Release, the descriptors may come of all that Import has said can be reached then. Errors:
  // kSystem.
  virtual Status Await(SharedAddress* address) = 0;

  // Sends the descriptors of places that this process has exported, if they need some. They have come when it returns.
  // Errors: kSystem, kUnsupported.
  virtual Status Send(const SharedPlace& place, const SharedAddress& to) = 0;

  // Ends the use of everything that was imported.
  virtual void Release() = 0;

 protected:
  ~SharedMemory() = default;
};

}  // namespace annulus
