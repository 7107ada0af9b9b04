// CudaMappings: the memory of GPUs that other processes of the host own, as far as this process has mapped it (CUDA
// IPC). Mapping takes hundreds of microseconds, so mappings are kept, and found by the owner's handle.
//
// An owner that frees mapped memory takes it from nobody: it stays until the mapping is closed. A mapping is closed
// when its owner has something else at the same addresses, when there are too many, and with the process's last queue.
//
// Mapping may wait for streams of the program's, so nobody does it with the lock: only who wants the same memory waits.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "collectives/cuda/cuda_device.h"
#include "collectives/reduce/shared_memory.h"

namespace annulus {

class CudaMappings {
 public:
  CudaMappings() = default;
  CudaMappings(const CudaMappings&) = delete;
  CudaMappings& operator=(const CudaMappings&) = delete;

  // Sets *begin to where `device` finds the allocation, which is then in use until Release. Errors: kSystem of the
  // driver.
  Status Hold(const CudaDevice& device, const SharedPlace& place, std::byte** begin);
  // Ends one use.
  void Release(const std::byte* begin);

  // For queues: their first and their last word. The last queue closes everything.
  void Enter();
  void Leave();

 private:
  static constexpr size_t kMost = 256;  // Most mappings, used or not.

  struct Mapping {
    SharedPlace place;
    const CudaDevice* device = nullptr;
    std::byte* begin = nullptr;
    int users = 0;
    uint64_t used = 0;         // When it was last held, counted in holds.
    bool is_changing = false;  // A thread maps or closes it, without the lock, and it stays meanwhile.
  };
  using Mappings = std::list<Mapping>;
  using Leaving = std::vector<Mappings::iterator>;

  static Status Open(const CudaDevice& device, const SharedPlace& place, std::byte** begin);
  static void Close(const Mapping& mapping);
  // What the owner of `place` has replaced, and the oldest mapping if there are too many; they are to be closed.
  Leaving MakeRoom(const SharedPlace& place);
  void Erase(const Leaving& closed);

  std::mutex mutex_;                 // Not held while the driver is called.
  std::condition_variable changed_;  // Some mappings are not changing any more, or are gone.
  Mappings mappings_;
  uint64_t holds_ = 0;
  int queues_ = 0;
};

}  // namespace annulus
