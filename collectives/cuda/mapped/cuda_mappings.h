// CudaMappings: the memory of GPUs that other processes of the host own, as far as this process has mapped it, by CUDA
// IPC or by descriptors. Mapping takes hundreds of microseconds, so mappings are kept, and found by the owner's handle,
// or by its number of the pieces.
//
// An owner that frees mapped memory takes it from nobody: it stays until the mapping is closed. A mapping is closed
// when its owner has something else at the same addresses, when there are too many, and with the process's last queue.
// Pieces may be mapped several times, with different neighbours.
//
// Mapping may wait for streams of the program's, so nobody does it with the lock: only who wants the same memory waits.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "collectives/cuda/cuda_device.h"
#include "collectives/cuda/mapped/file_post.h"
#include "collectives/cuda/mapped/virtual_range.h"
#include "collectives/reduce/shared_memory.h"
#include "transport/memory/retries.h"

namespace annulus {

class CudaMappings {
 public:
  CudaMappings() = default;
  CudaMappings(const CudaMappings&) = delete;
  CudaMappings& operator=(const CudaMappings&) = delete;

  // Sets *begin to where `device` finds the allocation, which is then in use until Release. `letter`: what may
  // have the place's descriptors; null: none. Errors: kSystem of the driver; kUnsupported: they could not be used
  // before; kInProgress: they are needed.
  Status Hold(const CudaDevice& device, const SharedPlace& place, const FileLetter* letter, std::byte** begin);
  // Ends one use.
  void Release(const CudaDevice& device, const std::byte* begin);

  // For queues: their first and their last word. The last queue closes everything. Leave returns whether it was that.
  void Enter();
  bool Leave();

 private:
  static constexpr size_t kMost = 256;  // Most mappings, used or not.
  static constexpr size_t kMostRefused = 64;

  struct Mapping {
    SharedPlace place;
    const CudaDevice* device = nullptr;
    std::byte* begin = nullptr;
    int users = 0;
    uint64_t used = 0;         // When it was last held, counted in holds.
    bool is_changing = false;  // A thread maps or closes it, without the lock, and it stays meanwhile.
    std::vector<FilePiece> pieces = {};
    std::unique_ptr<VirtualRange> range = {};  // Of pieces; null: by CUDA IPC.
  };
  // A place whose descriptors could not be used.
  struct Refused {
    SharedPlace place;
    Retries retries;
  };
  using Mappings = std::list<Mapping>;
  using Leaving = std::vector<Mappings::iterator>;

  static Status Open(Mapping* mapping, const FileLetter* letter);
  static Status OpenFiles(Mapping* mapping, const FileLetter& letter);
  static void Close(Mapping* mapping);
  // Whether the letter is the one that the place needs, if it needs one. Errors: as Hold. With mutex_ held.
  Status CheckLetter(const SharedPlace& place, const FileLetter* letter);
  // Whether descriptors could be used. With mutex_ held, and room in refused_.
  void NoteOutcome(const SharedPlace& place, bool is_mapped);
  // What the owner of the new mapping has replaced, and the oldest mapping if there are too many; they are to be
  // closed.
  Leaving MakeRoom(const Mapping& fresh);
  void Erase(const Leaving& closed);

  std::mutex mutex_;                 // Not held while the driver is called.
  std::condition_variable changed_;  // Some mappings are not changing any more, or are gone.
  Mappings mappings_;
  std::vector<Refused> refused_;  // The latest at the end.
  uint64_t holds_ = 0;
  int queues_ = 0;
};

}  // namespace annulus
