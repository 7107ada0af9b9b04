// FakeControl: how a test drives the stand-in for CUDA's driver, and what it asks it afterwards.
//
// The stand-in, libcuda_stand_in.so, is opened as the driver is (Driver::Find with its path). It has devices whose
// memory the CPU cannot touch, a thread that does the work of all streams late and in a seeded order, and a memory of
// each misuse. assumptions.md lists in what it is believed to be like the real driver.
//
// Threads: any; Reset while nothing else uses the stand-in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda_kernels/driver/driver_types.h"

namespace annulus::cuda {

// What joins two devices. By PCIe a device has no atomic operations on the other's memory.
enum class FakeLink { kNone, kPcie, kNvlink };

struct FakeOptions {
  uint64_t seed = 1;
  int devices = 1;
  // Devices of the machine that come before those of this process, which does not see them.
  int first_device = 0;
  // What joins two devices of the machine, by their numbers there; null: all are joined by NVLink.
  FakeLink (*link)(int, int) = nullptr;
  int most_delay_us = 20;         // Before each piece of work begins.
  int version = 13000;            // CUDA 13.0.
  std::string missing = {};       // A function that this driver does not have.
  bool loads_kernels = true;      // False: no image has code for its devices.
  size_t most_pinned = SIZE_MAX;  // Bytes that may be pinned at a time.
  bool waits_for_64_bits = true;  // Streams wait for words of 64 bits.
  bool captures_graph = false;    // Another thread captures a graph, in global mode.
  bool other_context = false;     // What Allocate gives belongs to a context that is not the primary one.
  bool keeps_addresses = false;   // No memory comes where memory was freed.
  bool shares_memory = true;      // Its memory can be reached by other processes.
  bool exports_memory = true;     // Other devices can be given its memory.
  unsigned without_exports = 0;   // Devices that do not export it all the same, one bit each.
  RdmaScope sees_rdma = RdmaScope::kOwner;
  bool flushes_rdma = true;
  bool is_pool = false;            // All of its memory is of a pool.
  bool maps_memory = true;         // It has the virtual memory API.
  size_t allocation_bytes = 0;     // If any, what is allocated seems to consist of so many bytes each.
  size_t most_pending = SIZE_MAX;  // Pieces of work that a stream takes; whoever has more waits.
  bool launches_block = false;     // As with CUDA_LAUNCH_BLOCKING: whoever launches a kernel waits for it.
};

// A mistake of the driver's user that the stand-in makes in its place, to show that it would be found.
enum class Mistake {
  kNone,
  kNoPin,       // Registered memory is not pinned.
  kNoPush,      // Contexts are not pushed.
  kNoWait,      // Work counts as done when it is submitted.
  kNoDrain,     // Synchronizing a stream does not wait.
  kNoPreload,   // Functions are not loaded before their first launch.
  kNoEvent,     // Streams do not wait for events.
  kNoGate,      // Streams do not wait for words.
  kClosedGate,  // Streams wait for words for ever.
  kNoReset,     // Streams write no zeros.
  kHalfWords,   // Streams see the first half of words of 64 bits only.
  kNoPeer,      // Devices are not let into the memory of others.
};

struct FakeCounts {
  int64_t launches = 0;
  int64_t slices = 0;   // Slices in all launches.
  unsigned blocks = 0;  // Blocks for each slice of the last launch.
  int64_t copies = 0;
  int64_t crossings = 0;  // Copies, and slices of launches, with an operand in host memory.
  int64_t questions = 0;  // Calls that tell of a pointer.
  int64_t numbers = 0;    // Calls that tell the number of a context.
  int64_t exports = 0;    // Descriptors of memory that were given out.
  int64_t imports = 0;    // Descriptors of memory that were taken.
  int64_t peers = 0;      // Calls that let a device into the memory of another.
  int64_t flushes = 0;    // Flushes of what network cards have written.
  int64_t pins = 0;       // Calls that pin host memory, for which a driver may wait for all streams.
  // Launches of functions that were not loaded: they wait for all streams and block all callers.
  int64_t lazy_loads = 0;
  // At this moment:
  int waiting = 0;  // Threads in a call that synchronizes a stream.
  int contexts = 0;
  int streams = 0;
  int events = 0;
  int graphs = 0;  // Executable ones too.
  int user_objects = 0;
  int pending = 0;  // Pieces of work that are not done.
  int libraries = 0;
  int64_t pinned_ranges = 0;
  int64_t mappings = 0;     // Mappings of other processes' memory.
  int64_t handles = 0;      // Physical memory of the virtual memory API, this process's and others'.
  int64_t ranges = 0;       // Reserved ranges of addresses.
  int64_t allocations = 0;  // Device memory allocated by the driver's functions, not by Allocate.
};

class FakeControl {
 public:
  virtual ~FakeControl() = default;

  // Forgets everything. Nothing of the stand-in may be in use.
  virtual void Reset(const FakeOptions& options) = 0;
  virtual void Make(Mistake mistake) = 0;
  // While it holds, no work begins.
  virtual void Hold(bool holds) = 0;
  // Destroys the primary context of a device and all that is in it, as cudaDeviceReset. The next Allocate there makes
  // one with the same handle and another number, as cudaMalloc.
  virtual void ResetDevice(int device) = 0;
  // From now on, or no longer, a graph is captured from the stream, in relaxed mode. It is thrown away.
  virtual void Capture(Stream stream, bool captures) = 0;
  // Waits for all work, and lets no call in meanwhile: as a function that is loaded by its first launch.
  virtual void WaitLocked() = 0;
  virtual bool IsLocked() = 0;
  // Threads whose calls wait to be let in.
  virtual int LockedOut() = 0;
  // `function` ("cuMemHostRegister") fails once, after `calls` more calls that do not; with kEveryCall always.
  static constexpr int kEveryCall = -1;
  virtual void Fail(const std::string& function, Result result, int calls) = 0;

  // What a flush of what network cards have written does, besides being counted; null: nothing.
  virtual void OnFlush(std::function<void()> flush) = 0;

  // Memory as another part of the program allocates it on a device. Not while work on it is pending.
  virtual std::byte* Allocate(int device, size_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;
  virtual void Write(std::byte* memory, const void* from, size_t bytes) = 0;
  virtual void Read(void* to, const std::byte* memory, size_t bytes) = 0;

  // What was done wrong so far: accesses to memory that is not there any more, missing waits between streams.
  virtual std::vector<std::string> Violations() = 0;
  virtual FakeCounts Counts() = 0;
};

using GetFakeControl = FakeControl* (*)();  // fake_cuda_control.

}  // namespace annulus::cuda
