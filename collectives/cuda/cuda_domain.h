// CudaDomain: the memory of a GPU, and that GPU.
//
// It owns all device memory that the driver knows. It takes up a device with the first buffer on it that a communicator
// gets: then it takes the device's primary context and loads the kernels; with the first device it pins the slots, for
// all. Buffers must be ready when a call gets them: the caller synchronizes the stream that fills them.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "collectives/cuda/cuda_device.h"
#include "collectives/cuda/cuda_exports.h"
#include "collectives/cuda/mapped/cuda_mappings.h"
#include "collectives/cuda/mapped/cuda_pieces.h"
#include "collectives/cuda/mapped/peer_access.h"
#include "collectives/cuda/pinned/pinned_slots.h"
#include "collectives/cuda/places/device_ranges.h"
#include "collectives/reduce/memory_domain.h"
#include "cuda_kernels/driver/driver.h"

namespace annulus {

// How the domain works. The texts live as long as it does.
struct CudaReport {
  enum class Path { kNone, kStaged, kKernels };  // As ANNULUS_PATH_...

  int driver = 0;  // Version, 13000 for CUDA 13.0.
  Path path = Path::kNone;
  int number = -1;  // Number of the device that was used first; -1, and no name, until there is one.
  int capability = 0;
  const char* name = "";
  const char* why = "";  // Why there is no better path, also over links; "" when this is the best.
};

class CudaGraphCall;
class CudaQueue;
class CudaStreamCall;
class CudaStreamCalls;
class FoldMemory;

class CudaDomain final : public MemoryDomain {
 public:
  // `image` holds the kernels, and outlives the domain; empty: all work is staged. A driver that is too old only tells
  // which memory is a GPU's, which Prepare then refuses.
  CudaDomain(std::unique_ptr<cuda::Driver> driver, std::span<const std::byte> image);
  // No queue may be left, and no stream-ordered call that its stream has not passed.
  ~CudaDomain() override;

  bool Owns(const void* pointer) const override;
  // Starts to use the pointer's device. kInvalidArgument: the memory was freed, or ends before so many bytes.
  // kUnsupported: the driver is too old, the pointer is in a context other than the primary one, or the GPU is to
  // reduce and cannot.
  Status Prepare(const void* pointer, size_t bytes, ReduceOn on, DomainQueue* queue) override;
  Status OpenQueue(ReduceOn on, std::unique_ptr<DomainQueue>* queue) override;
  std::unique_ptr<StreamCalls> OpenStreams(size_t most_bytes) override;
  std::byte* AllocateSlots(size_t bytes) override;
  void FreeSlots(std::byte* slots, size_t bytes) override;
  // Never fails: what cannot be pinned is staged.
  Status RegisterSlots(std::byte* slots, size_t bytes) override;
  void UnregisterSlots(std::byte* slots, size_t bytes) override;
  // Null: the driver is too old.
  const DeviceExports* exports() const override;

  // Sets *device to device number `ordinal`, and takes it up unless that was done: then the slots are pinned, or are
  // not for good. It waits for another thread that does. Asks no driver about a device that was taken up. Errors:
  // kUnsupported: the driver is too old; kSystem or kOutOfMemory of it.
  Status Use(int ordinal, const CudaDevice** device);
  // The same, but asks whether the device was reset since, and then takes up what came after that.
  Status UseNow(int ordinal, const CudaDevice** device);
  // The same for the driver's handle of a device.
  Status UseHandle(cuda::Device handle, const CudaDevice** device);

  // The slots stay pinned for a device that is used, though that for which they were pinned was reset.
  void KeepPinned(const CudaDevice& device) {
    if (slots_.AreLostFor(device)) slots_.PinFor(device);
  }

  // Opens the gates of all stream-ordered calls of the process, those of later calls too: it ends.
  void OpenGates();
  // For CudaStreamCalls: from its first call to its end. Places that a GPU has not left, or that graphs have, are kept
  // until it is otherwise; their gates are open.
  void Enter(CudaStreamCalls* calls);
  void Leave(CudaStreamCalls* calls, std::vector<std::unique_ptr<CudaStreamCall>> places,
             std::vector<std::unique_ptr<CudaGraphCall>> in_graphs);

  // Memory of a communicator of this process, by its address; null: there is none any more.
  void AddFoldMemory(uint64_t begin, const std::shared_ptr<FoldMemory>& memory);
  std::shared_ptr<FoldMemory> FindFoldMemory(uint64_t begin);

  // For a communicator that reduces `on` and has those links, named as DeviceExports::TellWay takes them; null: none.
  CudaReport Report(ReduceOn on = ReduceOn::kAuto, const void* links = nullptr) const;

  const cuda::Driver& driver() const { return *driver_; }
  const PinnedSlots& slots() const { return slots_; }
  CudaWindows& windows() const { return exports_.windows(); }
  CudaMappings& mappings() { return shared_.mappings; }
  CudaPieces& pieces() { return shared_.pieces; }
  PeerAccess& peers() { return shared_.peers; }
  // A number that no other process of the host has, a forked one neither.
  uint64_t process() const;

 private:
  class Opening;
  struct Devices {
    std::vector<std::unique_ptr<CudaDevice>> all;  // As they were first used; again after a reset.
    std::set<int> opening;                         // By number: a thread takes it up.
    std::condition_variable opened;                // One of them is that no more.
  };
  // Memory that ranks and GPUs reach in each other.
  struct Shared {
    PeerAccess peers;
    CudaMappings mappings;
    CudaPieces pieces;
  };
  // Places that communicators have left to GPUs and graphs that still have them.
  struct Left {
    std::vector<std::unique_ptr<CudaStreamCall>> to_gpus;
    std::vector<std::unique_ptr<CudaGraphCall>> to_graphs;
  };

  // UseNow for the buffer of a call with that queue; where the queue was prepared, Check asks. Null: the call is in a
  // stream, and asks when it takes a place there.
  Status UseFor(CudaQueue* queue, int ordinal, const CudaDevice** device);
  // Number `ordinal` of those in use, which nobody knows to have been reset; null: it is none. With mutex_ held.
  const CudaDevice* Find(int ordinal) const;
  // Takes up device number `ordinal`, unless another thread has.
  Status OpenDevice(int ordinal, const CudaDevice** device);
  // A text that lives as long as the domain; `otherwise` does, and is given where no more texts are kept.
  const char* Keep(const std::string& text, const char* otherwise) const;
  // Whether it is a GPU's memory, for DeviceRanges.
  bool IsMemory(const void* pointer) const;
  // Refuses memory that ends before `bytes` bytes from `pointer`, which lies at `place`.
  Status CheckEnd(const std::byte* pointer, size_t bytes, const cuda::PointerPlace& place) const;

  const std::unique_ptr<cuda::Driver> driver_;
  const std::span<const std::byte> image_;
  PinnedSlots slots_;
  DeviceRanges ranges_;  // Ranges of the buffers of calls.
  CudaExports exports_;
  Shared shared_;
  const uint64_t process_;    // That of process 0.
  mutable std::mutex mutex_;  // Guards what follows. Not held while the driver is called, as none here.
  Devices devices_;
  mutable std::set<std::string> kept_;
  std::mutex streams_mutex_;  // Guards what follows.
  std::vector<CudaStreamCalls*> streams_;
  Left left_;
  std::map<uint64_t, std::weak_ptr<FoldMemory>> fold_memories_;  // By their begin.
};

}  // namespace annulus
