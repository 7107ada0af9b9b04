// VirtualFunctions: the stand-in's functions of the virtual memory API, over FakeVirtual, with the parameters of the
// driver's table. They are stricter than the driver's: all need a context.
//
// Threads: any.
#pragma once

#include "tests/cuda/fake_driver/fake_calls.h"

namespace annulus::cuda {

struct VirtualFunctions {
  // Calls use(&virtual memory) as the driver's function `name`.
  template <class Use>
  static Result Do(const char* name, Use use) {
    return OutsideGraphs(name, [&] {
      if (!Fake().options().maps_memory) return Result::kNotSupported;
      return Fake().gpu().WithMemory([&](FakeMemory* all) { return use(&all->virtual_memory()); });
    });
  }

  static Result MemGetAddressRange(DevicePointer* begin, size_t* bytes, DevicePointer memory) {
    return WithContext("cuMemGetAddressRange", [&] {
      const MemoryRange range = Fake().gpu().WithMemory([&](FakeMemory* all) {
        const MemoryRange mapped = all->virtual_memory().MappingAt(FromDevice(memory));
        return mapped.bytes > 0 ? mapped : all->RangeAround(FromDevice(memory));
      });
      *begin = ToDevice(range.begin);
      *bytes = range.bytes;
      return range.bytes > 0 ? Result::kSuccess : Result::kInvalidValue;
    });
  }
  static Result MemGetAllocationGranularity(size_t* bytes, const AllocationProperties*, Granularity) {
    *bytes = FakeVirtual::kGranularity;
    return Fake().options().maps_memory ? Result::kSuccess : Result::kNotSupported;
  }
  static Result MemCreate(AllocationHandle* handle, size_t bytes, const AllocationProperties* properties,
                          unsigned long long) {
    const int device = properties->location.number;
    if (device < 0 || device >= Fake().options().devices) return Result::kInvalidValue;
    const bool has_files = properties->handles == ShareableHandle::kFile;
    return Do("cuMemCreate", [&](FakeVirtual* all) { return all->Create(device, bytes, has_files, handle); });
  }
  static Result MemRelease(AllocationHandle handle) {
    return Do("cuMemRelease", [&](FakeVirtual* all) { return all->Release(handle); });
  }
  static Result MemRetainAllocationHandle(AllocationHandle* handle, void* memory) {
    return Do("cuMemRetainAllocationHandle",
              [&](FakeVirtual* all) { return all->Retain(static_cast<std::byte*>(memory), handle); });
  }
  static Result MemExportToShareableHandle(void* file, AllocationHandle handle, ShareableHandle, unsigned long long) {
    return Do("cuMemExportToShareableHandle", [&](FakeVirtual* all) {
      ++Fake().counts().exports;
      return all->Export(handle, static_cast<int*>(file));
    });
  }
  static Result MemImportFromShareableHandle(AllocationHandle* handle, void* file, ShareableHandle) {
    return Do("cuMemImportFromShareableHandle", [&](FakeVirtual* all) {
      ++Fake().counts().imports;
      return all->Import(static_cast<int>(reinterpret_cast<intptr_t>(file)), handle);
    });
  }
  static Result MemAddressReserve(DevicePointer* begin, size_t bytes, size_t, DevicePointer, unsigned long long) {
    return Do("cuMemAddressReserve", [&](FakeVirtual* all) {
      std::byte* reserved = nullptr;
      const Result result = all->Reserve(bytes, &reserved);
      *begin = ToDevice(reserved);
      return result;
    });
  }
  static Result MemAddressFree(DevicePointer begin, size_t bytes) {
    return Do("cuMemAddressFree", [&](FakeVirtual* all) { return all->FreeRange(FromDevice(begin), bytes); });
  }
  static Result MemMap(DevicePointer begin, size_t bytes, size_t offset, AllocationHandle handle, unsigned long long) {
    if (offset != 0) return Result::kInvalidValue;
    return Do("cuMemMap", [&](FakeVirtual* all) { return all->Map(FromDevice(begin), bytes, handle); });
  }
  static Result MemUnmap(DevicePointer begin, size_t bytes) {
    Fake().gpu().MustBeIdle({FromDevice(begin), bytes}, "mapped memory is unmapped");
    return Do("cuMemUnmap", [&](FakeVirtual* all) { return all->Unmap(FromDevice(begin), bytes); });
  }
  static Result MemSetAccess(DevicePointer begin, size_t bytes, const AccessRight* rights, size_t count) {
    const bool lets_nobody_in = Fake().gpu().mistake() == Mistake::kNoPeer;
    return Do("cuMemSetAccess", [&](FakeVirtual* all) {
      for (size_t i = 0; i < count; ++i) {
        const int device = rights[i].location.number;
        if (device < 0 || device >= Fake().options().devices) return Result::kInvalidValue;
        if (lets_nobody_in && all->DeviceOf(FromDevice(begin)) != device) continue;
        if (const Result set = all->SetAccess(FromDevice(begin), bytes, device); set != Result::kSuccess) return set;
      }
      return Result::kSuccess;
    });
  }
};

}  // namespace annulus::cuda
