// FakeContexts: the primary contexts of the stand-in's devices, and what of them is no memory, stream or event:
// numbers, kernels, libraries, and pinned memory that the driver has allocated.
//
// A context that is reset keeps its handle: from then on it is not there, until somebody retains it or allocates in it
// as CUDA's runtime does. Then it has another number.
//
// Threads: one at a time.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda_kernels/driver/driver_types.h"
#include "cuda_kernels/kernel_names.h"

namespace annulus::cuda {

// A kernel or, of a context, its function.
struct FakeKernel {
  std::string name;
  uint64_t context = 0;  // Number of the context; 0: it is a kernel.
  int device = -1;
  bool is_loaded = false;
};

class FakeContexts {
 public:
  // The number of a device's context; 0: it was reset.
  uint64_t IdOf(int device) {
    const auto [context, is_new] = ids_.try_emplace(device, last_ + 1);
    if (is_new) ++last_;
    return context->second;
  }
  bool IsThere(int device) { return IdOf(device) != 0; }
  // Somebody needs it.
  void Begin(int device) {
    if (!IsThere(device)) ids_[device] = ++last_;
  }
  // It is destroyed, with its functions, libraries and pinned memory.
  void Reset(int device) {
    ids_[device] = 0;
    std::erase_if(libraries_, [=](const auto& each) { return each.second == device; });
    std::erase_if(host_blocks_, [=](const auto& block) { return block->device == device; });
  }

  FakeKernel* FindKernel(const std::string& name) {
    for (int type = 0; type < kNumDataTypes; ++type) {
      for (int op = 0; op < kNumReduceOps; ++op) {
        if (!HasKernel(static_cast<DataType>(type), static_cast<ReduceOp>(op))) continue;
        if (KernelName(static_cast<DataType>(type), static_cast<ReduceOp>(op)) != name) continue;
        FakeKernel* const kernel = &functions_[{0, name}];
        kernel->name = name;
        return kernel;
      }
    }
    return nullptr;
  }
  FakeKernel* FunctionOf(const FakeKernel& kernel, int device) {
    FakeKernel* const function = &functions_[{IdOf(device), kernel.name}];
    function->name = kernel.name;
    function->context = IdOf(device);
    function->device = device;
    return function;
  }
  // Whether its context was reset. Functions are never forgotten.
  bool IsLost(const FakeKernel& function) { return function.context != IdOf(function.device); }

  int NewLibrary(int device) {
    libraries_[++last_library_] = device;
    return last_library_;
  }
  bool DropLibrary(int library) { return libraries_.erase(library) == 1; }
  int libraries() const { return static_cast<int>(libraries_.size()); }

  void* MapHost(int device, size_t bytes) {
    host_blocks_.push_back(std::make_unique<HostBlock>(device, bytes));
    return host_blocks_.back()->memory;
  }
  bool UnmapHost(const void* memory) {
    return std::erase_if(host_blocks_, [=](const auto& block) { return block->memory == memory; }) == 1;
  }

 private:
  struct HostBlock {
    // Forked children have the same.
    HostBlock(int owner, size_t size)
        : device(owner),
          bytes(size),
          memory(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
    ~HostBlock() { munmap(memory, bytes); }
    HostBlock(const HostBlock&) = delete;
    HostBlock& operator=(const HostBlock&) = delete;

    const int device;
    const size_t bytes;
    void* const memory;
  };

  std::map<int, uint64_t> ids_;  // By device; 0: there is none.
  uint64_t last_ = 0;
  std::map<std::pair<uint64_t, std::string>, FakeKernel> functions_;  // By context and name.
  std::map<int, int> libraries_;                                      // Devices.
  int last_library_ = 0;
  std::vector<std::unique_ptr<HostBlock>> host_blocks_;
};

}  // namespace annulus::cuda
