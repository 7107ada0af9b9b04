// FakeDriver: the state behind the stand-in's functions: contexts, kernels, pinned memory and failures on command.
//
// Threads: any; one lock guards each call, as a driver's context lock does.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/fake_driver/fake_contexts.h"
#include "tests/cuda/fake_driver/fake_gpu.h"

namespace annulus::cuda {

// The contexts that are current in a thread, the last one on top. A context's handle is its device plus one.
inline std::vector<Context>& ContextsOfThread() {
  thread_local std::vector<Context> contexts;
  return contexts;
}

inline CaptureMode& CaptureModeOfThread() {
  thread_local CaptureMode mode = CaptureMode::kGlobal;
  return mode;
}

// Whether the thread is in a function of the program's that the driver calls.
inline bool& IsInHostFunction() {
  thread_local bool is_in = false;
  return is_in;
}

template <class Handle>
Handle ToHandle(int number) {
  return reinterpret_cast<Handle>(static_cast<intptr_t>(number));
}
template <class Handle>
int ToNumber(Handle handle) {
  return static_cast<int>(reinterpret_cast<intptr_t>(handle));
}

class FakeDriver final : public FakeControl {
 public:
  // A program that does not know of the stand-in has one device, or those of CUDA_VISIBLE_DEVICES, a list of numbers
  // that follow each other. CUDA_LAUNCH_BLOCKING=1 has its effect.
  FakeDriver() {
    FakeOptions options;
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (visible != nullptr) {
      options.first_device = std::atoi(visible);
      options.devices = 1 + static_cast<int>(std::count(visible, visible + std::strlen(visible), ','));
    }
    const char* const blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
    options.launches_block = blocking != nullptr && blocking == std::string("1");
    Reset(options);
  }

  void Reset(const FakeOptions& options) override {
    gpu_.reset();
    options_ = options;
    gpu_ = std::make_unique<FakeGpu>(options);
    counts_ = FakeCounts();
    failures_.clear();
    primary_ = std::make_unique<FakeContexts>();
    allocated_.clear();
    contexts_ = 0;
    flush_ = nullptr;
  }
  void OnFlush(std::function<void()> flush) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    flush_ = std::move(flush);
  }
  Result Flush() {
    if (!options_.flushes_rdma) return Result::kNotSupported;
    ++counts_.flushes;
    if (flush_) flush_();
    return Result::kSuccess;
  }
  bool Exports(int device) const { return options_.exports_memory && (options_.without_exports >> device & 1) == 0; }
  void Make(Mistake mistake) override { gpu_->SetMistake(mistake); }
  void Hold(bool holds) override { gpu_->Hold(holds); }
  void Capture(Stream stream, bool captures) override {
    gpu_->WithGraphs([=](FakeGraphs* graphs, FakeStreams*) {
      int graph = 0;
      if (captures) return graphs->Begin(ToNumber(stream), CaptureMode::kRelaxed);
      return graphs->End(ToNumber(stream), &graph) == Result::kSuccess ? graphs->DestroyGraph(graph)
                                                                       : Result::kInvalidValue;
    });
  }
  void ResetDevice(int device) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    LoseContext(device);
  }
  void WaitLocked() override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    is_locked_ = true;
    gpu_->WaitForAll();
    is_locked_ = false;
  }
  bool IsLocked() override { return is_locked_; }
  int LockedOut() override { return locked_out_; }
  void Fail(const std::string& function, Result result, int calls) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    failures_[function] = {result, calls};
  }
  std::byte* Allocate(int device, size_t bytes) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    primary_->Begin(device);
    return gpu_->WithMemory([=](FakeMemory* memory) { return memory->Allocate(device, bytes); });
  }
  void Free(std::byte* memory) override {
    MustBeIdle(memory, "device memory is freed");
    gpu_->WithMemory([=](FakeMemory* all) { all->Free(memory); });
  }
  void Write(std::byte* memory, const void* from, size_t bytes) override {
    if (bytes == 0) return;  // An empty buffer may have no address.
    gpu_->MustBeIdle({memory, bytes}, "device memory is written");
    gpu_->WithMemory(
        [=](FakeMemory* all) { std::memcpy(all->Access(all->DeviceOf(memory), memory, bytes), from, bytes); });
  }
  void Read(void* to, const std::byte* memory, size_t bytes) override {
    if (bytes == 0) return;
    gpu_->MustBeIdle({memory, bytes}, "device memory is read");
    gpu_->WithMemory(
        [=](FakeMemory* all) { std::memcpy(to, all->Access(all->DeviceOf(memory), memory, bytes), bytes); });
  }
  std::vector<std::string> Violations() override { return gpu_->Violations(); }
  FakeCounts Counts() override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    FakeCounts counts = counts_;
    counts.contexts = contexts_;
    counts.libraries = primary_->libraries();
    gpu_->AddCounts(&counts);
    return counts;
  }

  // Begins a call: with the lock, and with the failure that was asked for.
  template <class Body>
  Result Call(const std::string& function, bool needs_context, Body body) {
    ++locked_out_;
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    --locked_out_;
    if (IsInHostFunction()) {
      gpu_->AddViolation("a function that the driver calls calls it: " + function);
      return Result::kNotPermitted;
    }
    const auto failure = failures_.find(function);
    if (failure != failures_.end() && failure->second.calls == kEveryCall) return failure->second.result;
    if (failure != failures_.end() && failure->second.calls-- == 0) {
      const Result result = failure->second.result;
      failures_.erase(failure);
      return result;
    }
    if (needs_context && ContextsOfThread().empty()) return Result::kInvalidContext;
    if (needs_context && !primary_->IsThere(Device())) return Result::kContextIsDestroyed;
    return body();
  }

  const FakeOptions& options() const { return options_; }
  FakeGpu& gpu() { return *gpu_; }
  FakeCounts& counts() { return counts_; }
  FakeContexts& primary() { return *primary_; }
  static int Device() { return ToNumber(ContextsOfThread().back()) - 1; }

  // A device's handle is not its number.
  static int HandleOf(int ordinal) { return ordinal + kFirstHandle; }
  static int OrdinalOf(int handle) { return handle - kFirstHandle; }
  bool IsHandle(int device) const { return device >= kFirstHandle && device < kFirstHandle + options_.devices; }

  Result Retain(Context* context, int device) {
    if (!IsHandle(device)) return Result::kInvalidValue;
    ++contexts_;
    primary_->Begin(OrdinalOf(device));
    *context = ToHandle<Context>(device - kFirstHandle + 1);
    return Result::kSuccess;
  }
  Result Release(int device) {
    if (!IsHandle(device)) return Result::kInvalidValue;
    return contexts_-- > 0 ? Result::kSuccess : Result::kInvalidContext;
  }
  // Whoever has retained it still has.
  Result ResetContext(int device) {
    if (!IsHandle(device)) return Result::kInvalidDevice;
    LoseContext(OrdinalOf(device));
    return Result::kSuccess;
  }
  Result TellId(Context context, unsigned long long* id) {
    const int device = context != nullptr ? ToNumber(context) - 1 : ContextsOfThread().empty() ? -1 : Device();
    if (device < 0) return Result::kInvalidContext;
    ++counts_.numbers;
    *id = primary_->IdOf(device);
    return *id != 0 ? Result::kSuccess : Result::kContextIsDestroyed;
  }

  Result Attributes(unsigned count, const PointerAttribute* attributes, void** values, const std::byte* pointer) {
    ++counts_.questions;
    const auto [device, range] = gpu_->WithMemory(
        [=](FakeMemory* memory) { return std::pair(memory->DeviceOf(pointer), memory->RangeAround(pointer)); });
    const auto [is_virtual, has_files] = gpu_->WithMemory([=](FakeMemory* memory) {
      const FakeVirtual& mapped = memory->virtual_memory();
      return std::pair(mapped.MappingAt(pointer).bytes > 0, mapped.HasFiles(pointer));
    });
    const MemoryRange piece = PieceOf(range, pointer, device);
    const MemoryType type = device >= 0 ? MemoryType::kDevice : range.bytes > 0 ? MemoryType::kHost : MemoryType::kNone;
    const int context = device < 0 || is_virtual ? 0 : device + 1 + (options_.other_context ? options_.devices : 0);
    for (unsigned i = 0; i < count; ++i) {
      if (attributes[i] == PointerAttribute::kMemoryType) *static_cast<MemoryType*>(values[i]) = type;
      if (attributes[i] == PointerAttribute::kIsManaged) *static_cast<unsigned*>(values[i]) = 0;
      if (attributes[i] == PointerAttribute::kDeviceOrdinal) *static_cast<int*>(values[i]) = device;
      if (attributes[i] == PointerAttribute::kContext) *static_cast<Context*>(values[i]) = ToHandle<Context>(context);
      if (attributes[i] == PointerAttribute::kRangeStart)
        *static_cast<DevicePointer*>(values[i]) = ToDevice(piece.begin);
      if (attributes[i] == PointerAttribute::kRangeSize) *static_cast<size_t*>(values[i]) = piece.bytes;
      if (attributes[i] == PointerAttribute::kBufferId) *static_cast<uint64_t*>(values[i]) = IdOf(pointer);
      if (attributes[i] == PointerAttribute::kIsLegacyIpcCapable)
        *static_cast<unsigned*>(values[i]) = device >= 0 && !is_virtual && options_.shares_memory;
      if (attributes[i] == PointerAttribute::kPool)
        *static_cast<void**>(values[i]) = options_.is_pool && device >= 0 ? this : nullptr;
      if (attributes[i] == PointerAttribute::kIsMapped) *static_cast<unsigned*>(values[i]) = device >= 0;
      if (attributes[i] == PointerAttribute::kShareableHandles)
        *static_cast<uint64_t*>(values[i]) = has_files ? static_cast<uint64_t>(ShareableHandle::kFile) : 0;
    }
    return Result::kSuccess;
  }

  Result Pin(std::byte* memory, size_t bytes) {
    ++counts_.pins;
    if (gpu_->mistake() == Mistake::kNoPin) return Result::kSuccess;
    return gpu_->WithMemory([=, this](FakeMemory* all) {
      if (bytes > options_.most_pinned - std::min(options_.most_pinned, all->pinned_bytes())) {
        return Result::kOutOfMemory;
      }
      return all->Pin(Device(), memory, bytes);
    });
  }
  Result Unpin(std::byte* memory) {
    if (gpu_->mistake() == Mistake::kNoPin) return Result::kSuccess;
    const MemoryRange range = gpu_->WithMemory([=](FakeMemory* all) { return all->PinnedAt(memory); });
    if (range.bytes == 0) return Unknown(memory, "unpinned");
    gpu_->MustBeIdle(range, "pinned memory is given back");
    gpu_->WithMemory([=](FakeMemory* all) { all->Unpin(memory); });
    return Result::kSuccess;
  }
  Result AllocateHost(void** memory, size_t bytes) {
    ++counts_.pins;
    *memory = primary_->MapHost(Device(), bytes);
    const Result result =
        gpu_->WithMemory([=](FakeMemory* all) { return all->Pin(Device(), static_cast<std::byte*>(*memory), bytes); });
    if (result != Result::kSuccess) primary_->UnmapHost(*memory);
    return result;
  }
  Result FreeHost(void* memory) {
    auto* const bytes = static_cast<std::byte*>(memory);
    const MemoryRange range = gpu_->WithMemory([=](FakeMemory* all) { return all->PinnedAt(bytes); });
    gpu_->MustBeIdle(range, "pinned memory is freed");
    gpu_->WithMemory([=](FakeMemory* all) { all->Unpin(bytes); });
    return primary_->UnmapHost(memory) ? Result::kSuccess : Unknown(bytes, "freed");
  }
  Result FreeDevice(std::byte* memory) {
    MustBeIdle(memory, "device memory is freed");
    const bool freed = gpu_->WithMemory([=](FakeMemory* all) { return all->Free(memory); });
    counts_.allocations -= static_cast<int64_t>(allocated_.erase(memory));
    return freed ? Result::kSuccess : Unknown(memory, "freed");
  }

  Result ExportMemory(const std::byte* memory, IpcMemHandle* handle) {
    if (!options_.shares_memory) return Result::kNotSupported;
    const bool is_there = gpu_->WithMemory([=](FakeMemory* all) { return all->Export(memory, handle); });
    return is_there ? Result::kSuccess : Result::kInvalidValue;
  }
  Result ImportMemory(const IpcMemHandle& handle, std::byte** memory) {
    *memory = nullptr;
    const Result result = gpu_->WithMemory([&](FakeMemory* all) { return all->Import(Device(), handle, memory); });
    counts_.mappings += result == Result::kSuccess;
    return result;
  }
  Result EnablePeer(Context peer) {
    const int device = ToNumber(peer) - 1;
    if (device < 0 || device >= options_.devices) return Result::kInvalidContext;
    ++counts_.peers;
    if (gpu_->mistake() == Mistake::kNoPeer) return Result::kSuccess;
    return gpu_->WithMemory([=](FakeMemory* all) { return all->peers().Enable(Device(), device); });
  }
  Result CloseMemory(std::byte* memory) {
    MustBeIdle(memory, "a mapping is closed");
    const bool is_there = gpu_->WithMemory([=](FakeMemory* all) { return all->Free(memory); });
    counts_.mappings -= is_there ? 1 : 0;
    return is_there ? Result::kSuccess : Unknown(memory, "closed");
  }

  Result AllocateDevice(std::byte** memory, size_t bytes) {
    *memory = Allocate(Device(), bytes);
    allocated_.insert(*memory);
    ++counts_.allocations;
    return Result::kSuccess;
  }
  Result UnloadLibrary(int library) {
    if (primary_->DropLibrary(library)) return Result::kSuccess;
    gpu_->AddViolation("a library of a context that was reset is unloaded");
    return Result::kInvalidHandle;
  }
  Result LoadFunction(FakeKernel* kernel) {
    if (primary_->IsLost(*kernel)) return Lost();
    if (gpu_->mistake() != Mistake::kNoPreload) kernel->is_loaded = true;
    return Result::kSuccess;
  }
  Result Launch(FakeKernel* kernel, unsigned blocks, unsigned slices, unsigned threads, int stream, void** parameters) {
    if (blocks == 0 || slices == 0 || slices > kMaxSlices || threads == 0) return Result::kInvalidValue;
    if (primary_->IsLost(*kernel)) return Lost();
    if (!kernel->is_loaded) {  // With the lock held, as a driver that loads lazily.
      ++counts_.lazy_loads;
      gpu_->WaitForAll();
      kernel->is_loaded = true;
    }
    return gpu_->Launch(stream, kernel->name, *static_cast<const KernelBatch*>(parameters[0]), slices, blocks, threads);
  }

 private:
  static constexpr int kFirstHandle = 100;

  struct Failure {
    Result result;
    int calls;
  };

  Result Lost() {
    gpu_->AddViolation("a function of a context that was reset is used");
    return Result::kInvalidHandle;
  }
  // The result for memory that is not there. What a reset has taken must not be given back again.
  Result Unknown(const std::byte* memory, const std::string& what) {
    if (gpu_->WithMemory([=](FakeMemory* all) { return all->IsLost(memory); }))
      gpu_->AddViolation("memory that a reset has freed is " + what);
    return Result::kInvalidValue;
  }
  void LoseContext(int device) {
    const int64_t mappings = gpu_->Lose(device);
    counts_.mappings -= mappings;
    primary_->Reset(device);
    const auto is_lost = [this](const std::byte* memory) {
      return gpu_->WithMemory([=](FakeMemory* all) { return all->IsLost(memory); });
    };
    counts_.allocations -= static_cast<int64_t>(std::erase_if(allocated_, is_lost));
  }
  uint64_t IdOf(const std::byte* memory) const {
    return gpu_->WithMemory([=](FakeMemory* all) { return all->IdOf(memory); });
  }
  // The part of an allocation that the driver tells as one.
  MemoryRange PieceOf(const MemoryRange& range, const std::byte* pointer, int device) const {
    const size_t bytes = options_.allocation_bytes;
    if (device < 0 || bytes == 0) return range;
    const size_t before = static_cast<size_t>(pointer - range.begin) / bytes * bytes;
    return {range.begin + before, std::min(bytes, range.bytes - before)};
  }
  void MustBeIdle(const std::byte* memory, const std::string& what) {
    gpu_->MustBeIdle(gpu_->WithMemory([=](FakeMemory* all) { return all->AllocationAt(memory); }), what);
  }

  std::recursive_mutex mutex_;
  FakeOptions options_;
  std::unique_ptr<FakeGpu> gpu_;
  FakeCounts counts_;
  std::map<std::string, Failure> failures_;
  std::unique_ptr<FakeContexts> primary_;
  std::set<const std::byte*> allocated_;  // By the driver's functions.
  int contexts_ = 0;                      // Times that they were retained.
  std::function<void()> flush_;
  std::atomic<bool> is_locked_{false};
  std::atomic<int> locked_out_{0};
};

}  // namespace annulus::cuda
