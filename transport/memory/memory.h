// Registered memory: parts of this process's memory that other processes of its host may map, so that a transport lets
// a peer read a buffer where it is, without staging.
//
// A region is a memory file (memfd) that is mapped here; a transport hands the file to peers. Allocate() creates a
// region. Register() turns existing private memory into one: it moves the content of its whole pages into a memory file
// and maps the file in their place, so that pointers stay valid. Deregister() moves the pages back. Files are sealed
// against shrinking, so a mapped page can never be taken away from a peer.
//
// One registry serves a process, because memory belongs to the process: a buffer outlives the communicators that use
// it, and serves all of them. collectives/api owns the registry.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"

namespace annulus {

// Whole pages of this process that peers may map. The region owns the descriptor.
class MemoryRegion {
 public:
  MemoryRegion(uint64_t id, std::byte* begin, size_t bytes, int fd);
  ~MemoryRegion();
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;

  bool Contains(const std::byte* data, size_t size) const {
    return data >= begin && size <= bytes && static_cast<size_t>(data - begin) <= bytes - size;
  }

  // Gives the memory back now, even if peers still map it. Does nothing in a forked child, because the memory is the
  // parent's too.
  void GiveBack() const;

  const uint64_t id;  // Not reused in this process.
  std::byte* const begin;
  const size_t bytes;
  const int fd;

 private:
  const pid_t maker_;
};

using MemoryRegions = std::vector<std::shared_ptr<const MemoryRegion>>;

// Somebody who holds on to registered memory, such as a device, and lets go of it in time.
class MemoryHolder {
 public:
  // The region `id` is about to be given back. Called on the thread that gives it back, with the registry locked.
  virtual void Forget(uint64_t id) = 0;

 protected:
  ~MemoryHolder() = default;
};

class MemoryRegistry {
 public:
  // Allocates zeroed memory, aligned to a page (to 2 MiB when it is at least that large). Free it with Free().
  // Errors: kInvalidArgument for 0 bytes, kOutOfMemory, kSystem.
  Status Allocate(size_t bytes, void** memory);
  // Errors: kInvalidArgument when Allocate did not return `memory`.
  Status Free(void* memory);

  // Makes the whole pages within [memory, memory + bytes) a region; nobody may write to them meanwhile. Partial pages
  // at both ends stay private. The memory must be a private anonymous mapping, as malloc makes for large blocks but not
  // for small ones. It must be deregistered before it is freed or resized. A forked child shares it.
  // Errors: kInvalidArgument for null, 0 bytes or an overlap with registered memory; kUnsupported for other memory;
  // kOutOfMemory, kSystem. After an error the memory is as before.
  Status Register(void* memory, size_t bytes);
  // Errors: kInvalidArgument when Register was not given `memory`; kOutOfMemory or kSystem when not all pages could be
  // moved back: the memory can be used as before, but some of it stays in the file.
  Status Deregister(void* memory);

  // Changes whenever a region is added or removed.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  MemoryRegions Regions() const;

  // `holder` is told of every region that goes, until it is removed. It lives as long.
  void AddHolder(MemoryHolder* holder) const;
  void RemoveHolder(MemoryHolder* holder) const;

  // The total size of all regions.
  size_t bytes() const;

  // Between the two no thread is in the registry, so that a process that is forked meanwhile has it whole.
  void HoldForFork() { mu_.lock(); }
  void LetGoAfterFork() { mu_.unlock(); }

 private:
  struct Entry {
    std::shared_ptr<const MemoryRegion> region;  // Null when there is no whole page.
    size_t bytes = 0;                            // The size that the user gave.
    bool allocated = false;
  };

  bool Overlaps(const std::byte* begin, size_t bytes) const;
  // Takes the entry out, after all holders have let go of its region.
  Status Drop(void* memory, bool allocated, Entry* entry);

  mutable std::mutex mu_;
  mutable std::vector<MemoryHolder*> holders_;
  std::map<const std::byte*, Entry> entries_;  // Key: the user's address.
  uint64_t next_id_ = 1;
  std::atomic<uint64_t> version_{1};
};

}  // namespace annulus
