// libcuda_stand_in.so: a stand-in for CUDA's driver: the functions of the driver's table, over FakeDriver.
//
// Threads: any.
#include <fcntl.h>

#include <cstring>
#include <string>
#include <utility>

#include "tests/cuda/fake_driver/fake_calls.h"
#include "tests/cuda/fake_driver/fake_graph_functions.h"
#include "tests/cuda/fake_driver/fake_virtual_functions.h"

namespace annulus::cuda {
namespace {

constexpr int kMultiprocessors = 132;
constexpr int kFirstBus = 0x10;

// Each with the parameters of the table.
struct Functions : GraphFunctions, VirtualFunctions {
  static Result DriverGetVersion(int* version) {
    *version = Fake().options().version;
    return Result::kSuccess;
  }
  static Result GetErrorName(Result, const char** name) {
    *name = "CUDA_ERROR_FAKE";
    return Result::kSuccess;
  }
  static Result GetErrorString(Result, const char** text) {
    *text = "an error of the stand-in";
    return Result::kSuccess;
  }

  static Result DeviceGet(Device* device, int ordinal) {
    *device = FakeDriver::HandleOf(ordinal);
    return ordinal < Fake().options().devices ? Result::kSuccess : Result::kInvalidValue;
  }
  static Result DeviceGetName(char* name, int bytes, Device device) {
    if (!Fake().IsHandle(device)) return Result::kInvalidValue;
    std::strncpy(name, "Fake GPU", static_cast<size_t>(bytes));
    return Result::kSuccess;
  }
  static Result DeviceGetAttribute(int* value, DeviceAttribute attribute, Device device) {
    if (!Fake().IsHandle(device)) return Result::kInvalidValue;
    *value = attribute == DeviceAttribute::kMultiprocessors          ? kMultiprocessors
             : attribute == DeviceAttribute::kComputeCapabilityMajor ? 9
             : attribute == DeviceAttribute::kComputeCapabilityMinor ? 0
             : attribute == DeviceAttribute::kRdmaWritesOrdering     ? static_cast<int>(Fake().options().sees_rdma)
             : attribute == DeviceAttribute::kRdmaFlushOptions       ? (Fake().options().flushes_rdma ? 1 : 0)
             : attribute == DeviceAttribute::kCanUse64BitWords       ? (Fake().options().waits_for_64_bits ? 1 : 0)
             : attribute == DeviceAttribute::kDmaBufSupported ? (Fake().Exports(FakeDriver::OrdinalOf(device)) ? 1 : 0)
             : attribute == DeviceAttribute::kVirtualMemory   ? (Fake().options().maps_memory ? 1 : 0)
             : attribute == DeviceAttribute::kPciBus
                 ? kFirstBus + Fake().options().first_device + FakeDriver::OrdinalOf(device)
             : attribute == DeviceAttribute::kPciDevice ? 0
             : attribute == DeviceAttribute::kPciDomain ? 0
                                                        : 1;
    return Result::kSuccess;
  }
  static Result DeviceGetP2PAttribute(int* value, PeerAttribute attribute, Device device, Device peer) {
    if (!Fake().IsHandle(device) || !Fake().IsHandle(peer) || device == peer) return Result::kInvalidValue;
    const FakeOptions& options = Fake().options();
    const auto on_machine = [&](Device handle) { return FakeDriver::OrdinalOf(handle) + options.first_device; };
    const FakeLink joins =
        options.link == nullptr ? FakeLink::kNvlink : options.link(on_machine(device), on_machine(peer));
    *value = attribute == PeerAttribute::kAccess          ? joins != FakeLink::kNone
             : attribute == PeerAttribute::kNativeAtomics ? joins == FakeLink::kNvlink
                                                          : 0;
    return Result::kSuccess;
  }
  static Result DeviceGetUuid(Uuid* uuid, Device device) {
    if (!Fake().IsHandle(device)) return Result::kInvalidValue;
    *uuid = Uuid();
    const int on_machine = device + Fake().options().first_device;
    std::memcpy(uuid->bytes, &on_machine, sizeof on_machine);
    return Result::kSuccess;
  }
  static Result DevicePrimaryCtxRetain(Context* context, Device device) {
    return Without("cuDevicePrimaryCtxRetain", [&] { return Fake().Retain(context, device); });
  }
  static Result DevicePrimaryCtxRelease(Device device) {
    return Without("cuDevicePrimaryCtxRelease", [&] { return Fake().Release(device); });
  }
  static Result CtxPushCurrent(Context context) {
    return Without("cuCtxPushCurrent", [&] {
      if (context != nullptr && !Fake().primary().IsThere(ToNumber(context) - 1)) return Result::kContextIsDestroyed;
      if (Fake().gpu().mistake() != Mistake::kNoPush) ContextsOfThread().push_back(context);
      return Result::kSuccess;
    });
  }
  static Result CtxPopCurrent(Context* context) {
    return Without("cuCtxPopCurrent", [&] {
      if (ContextsOfThread().empty()) return Result::kInvalidContext;
      *context = ContextsOfThread().back();
      ContextsOfThread().pop_back();
      return Result::kSuccess;
    });
  }
  static Result CtxGetId(Context context, unsigned long long* id) {
    return Without("cuCtxGetId", [&] { return Fake().TellId(context, id); });
  }
  static Result DevicePrimaryCtxReset(Device device) {
    return Without("cuDevicePrimaryCtxReset", [&] { return Fake().ResetContext(device); });
  }
  static Result CtxGetDevice(Device* device) {
    return WithContext("cuCtxGetDevice", [&] {
      *device = FakeDriver::HandleOf(FakeDriver::Device());
      return Result::kSuccess;
    });
  }

  static Result DeviceCanAccessPeer(int* can, Device device, Device peer) {
    return Without("cuDeviceCanAccessPeer", [&] {
      if (!Fake().IsHandle(device) || !Fake().IsHandle(peer)) return Result::kInvalidDevice;
      const int from = FakeDriver::OrdinalOf(device);
      const int to = FakeDriver::OrdinalOf(peer);
      *can = Fake().gpu().WithMemory([=](FakeMemory* all) {
        return from != to && all->peers().CanAccess(from, all->peers().OnMachine(to)) ? 1 : 0;
      });
      return Result::kSuccess;
    });
  }
  static Result CtxEnablePeerAccess(Context peer, unsigned flags) {
    return WithContext("cuCtxEnablePeerAccess",
                       [&] { return flags == 0 ? Fake().EnablePeer(peer) : Result::kInvalidValue; });
  }

  static Result MemAlloc(DevicePointer* memory, size_t bytes) {
    return OutsideGraphs("cuMemAlloc", [&] {
      std::byte* allocated = nullptr;
      const Result result = Fake().AllocateDevice(&allocated, bytes);
      *memory = ToDevice(allocated);
      return result;
    });
  }
  static Result MemFree(DevicePointer memory) {
    return OutsideGraphs("cuMemFree", [&] { return Fake().FreeDevice(FromDevice(memory)); });
  }
  static Result MemsetD8Async(DevicePointer memory, unsigned char value, size_t bytes, Stream stream) {
    return WithContext("cuMemsetD8Async",
                       [&] { return Fake().gpu().Set(OfStream(stream), FromDevice(memory), value, bytes); });
  }
  static Result MemHostAlloc(void** memory, size_t bytes, unsigned) {
    return OutsideGraphs("cuMemHostAlloc", [&] { return Fake().AllocateHost(memory, bytes); });
  }
  static Result MemFreeHost(void* memory) {
    return OutsideGraphs("cuMemFreeHost", [&] { return Fake().FreeHost(memory); });
  }
  static Result MemHostRegister(void* memory, size_t bytes, unsigned) {
    return OutsideGraphs("cuMemHostRegister", [&] { return Fake().Pin(static_cast<std::byte*>(memory), bytes); });
  }
  static Result MemHostUnregister(void* memory) {
    return OutsideGraphs("cuMemHostUnregister", [&] { return Fake().Unpin(static_cast<std::byte*>(memory)); });
  }
  static Result PointerGetAttributes(unsigned count, PointerAttribute* attributes, void** values,
                                     DevicePointer pointer) {
    return Without("cuPointerGetAttributes",
                   [&] { return Fake().Attributes(count, attributes, values, FromDevice(pointer)); });
  }
  static Result IpcGetMemHandle(IpcMemHandle* handle, DevicePointer memory) {
    return WithContext("cuIpcGetMemHandle", [&] { return Fake().ExportMemory(FromDevice(memory), handle); });
  }
  static Result IpcOpenMemHandle(DevicePointer* memory, IpcMemHandle handle, unsigned flags) {
    return OutsideGraphs("cuIpcOpenMemHandle", [&] {
      if (flags != kIpcLazyPeerAccess) return Result::kInvalidValue;
      std::byte* mapped = nullptr;
      const Result result = Fake().ImportMemory(handle, &mapped);
      *memory = ToDevice(mapped);
      return result;
    });
  }
  static Result IpcCloseMemHandle(DevicePointer memory) {
    return OutsideGraphs("cuIpcCloseMemHandle", [&] { return Fake().CloseMemory(FromDevice(memory)); });
  }
  static Result MemGetHandleForAddressRange(void* handle, DevicePointer begin, size_t bytes, RangeHandle,
                                            unsigned long long) {
    return WithContext("cuMemGetHandleForAddressRange", [&] {
      if (!Fake().Exports(FakeDriver::Device())) return Result::kNotSupported;
      const std::string file =
          Fake().gpu().WithMemory([=](FakeMemory* all) { return all->FileOf(FromDevice(begin), bytes); });
      if (file.empty()) return Result::kInvalidValue;
      *static_cast<int*>(handle) = open(file.c_str(), O_RDWR | O_CLOEXEC);
      ++Fake().counts().exports;
      return Result::kSuccess;
    });
  }
  static Result FlushGPUDirectRDMAWrites(FlushTarget, RdmaScope) {
    return WithContext("cuFlushGPUDirectRDMAWrites", [&] { return Fake().Flush(); });
  }

  static Result ThreadExchangeStreamCaptureMode(CaptureMode* mode) {
    std::swap(*mode, CaptureModeOfThread());
    return Result::kSuccess;
  }
  static Result StreamCreateWithPriority(Stream* stream, unsigned flags, int) {
    return WithContext("cuStreamCreateWithPriority", [&] {
      *stream = ToHandle<Stream>(Fake().gpu().WithStreams(
          [=](FakeStreams* streams) { return streams->New(FakeDriver::Device(), flags != kStreamNonBlocking); }));
      return Result::kSuccess;
    });
  }
  static Result StreamDestroy(Stream stream) {
    return WithContext("cuStreamDestroy", [&] { return Fake().gpu().DestroyStream(OfStream(stream)); });
  }
  static Result StreamQuery(Stream stream) {
    return WithContext("cuStreamQuery", [&] { return Fake().gpu().Query(OfStream(stream)); });
  }
  static Result StreamSynchronize(Stream stream) {
    int number = 0;
    const Result begun = WithContext("cuStreamSynchronize", [&] {
      number = OfStream(stream);
      return Result::kSuccess;
    });
    // Without the lock: other calls go on meanwhile.
    return begun == Result::kSuccess ? Fake().gpu().Synchronize(number) : begun;
  }
  static Result StreamWriteValue32(Stream stream, DevicePointer word, uint32_t value, unsigned) {
    return Enqueue("cuStreamWriteValue32", stream,
                   [&](int number) { return Fake().gpu().WriteWord(number, FromDevice<uint32_t>(word), value); });
  }
  static Result StreamWaitValue32(Stream stream, DevicePointer word, uint32_t value, unsigned) {
    return Enqueue("cuStreamWaitValue32", stream,
                   [&](int number) { return Fake().gpu().WaitWord(number, FromDevice<uint32_t>(word), value); });
  }
  static Result StreamGetCtx(Stream stream, Context* context) {
    if (stream == nullptr || stream == LegacyStream() || stream == ThreadStream()) {
      return WithContext("cuStreamGetCtx", [&] {
        *context = ContextsOfThread().back();
        return Result::kSuccess;
      });
    }
    return Without("cuStreamGetCtx", [&] {
      const int device = Fake().gpu().WithStreams([=](FakeStreams* all) { return all->DeviceOf(ToNumber(stream)); });
      *context = ToHandle<Context>(device + 1);
      return device >= 0 ? Result::kSuccess : Fake().gpu().Unknown(ToNumber(stream));
    });
  }
  static Result StreamWaitEvent(Stream stream, Event event, unsigned) {
    return WithContext("cuStreamWaitEvent", [&] { return Fake().gpu().WaitEvent(OfStream(stream), ToNumber(event)); });
  }
  static Result EventCreate(Event* event, unsigned) {
    return WithContext("cuEventCreate", [&] {
      *event = ToHandle<Event>(
          Fake().gpu().WithStreams([](FakeStreams* all) { return all->NewEvent(FakeDriver::Device()); }));
      return Result::kSuccess;
    });
  }
  static Result EventDestroy(Event event) {
    return WithContext("cuEventDestroy", [&] { return Fake().gpu().DestroyEvent(ToNumber(event)); });
  }
  static Result EventRecord(Event event, Stream stream) {
    return WithContext("cuEventRecord", [&] { return Fake().gpu().RecordEvent(ToNumber(event), OfStream(stream)); });
  }
  static Result MemcpyAsync(DevicePointer to, DevicePointer from, size_t bytes, Stream stream) {
    return Enqueue("cuMemcpyAsync", stream,
                   [&](int number) { return Fake().gpu().Copy(number, FromDevice(to), FromDevice(from), bytes); });
  }

  // Copies rows that lie one behind the other. It fails as a copy of one piece does.
  static Result Memcpy2DAsync(const RowsCopy* rows, Stream stream) {
    return WithContext("cuMemcpyAsync", [&] {
      const bool is_whole = rows->bytes == rows->from_pitch && rows->bytes == rows->to_pitch;
      const bool is_unified = rows->from_type == MemoryType::kUnified && rows->to_type == MemoryType::kUnified;
      if (!is_whole || !is_unified) return Result::kInvalidValue;
      // Within devices the driver may refuse rows that cuMemAllocPitch would not have laid out.
      constexpr size_t kPitch = 512;
      const auto is_device = [](DevicePointer pointer) {
        return Fake().gpu().WithMemory([=](FakeMemory* memory) { return memory->DeviceOf(FromDevice(pointer)); }) >= 0;
      };
      if (is_device(rows->from) && is_device(rows->to) && rows->from_pitch % kPitch != 0) return Result::kInvalidValue;
      return Fake().gpu().Copy(OfStream(stream), FromDevice(rows->to), FromDevice(rows->from),
                               rows->bytes * rows->rows);
    });
  }

  static Result LibraryLoadData(Library* library, const void*, JitOption*, void**, unsigned, LibraryOption*, void**,
                                unsigned) {
    return WithContext("cuLibraryLoadData", [&] {
      if (!Fake().options().loads_kernels) return Result::kNotFound;
      *library = ToHandle<Library>(Fake().primary().NewLibrary(FakeDriver::Device()));
      return Result::kSuccess;
    });
  }
  static Result LibraryUnload(Library library) {
    return WithContext("cuLibraryUnload", [&] { return Fake().UnloadLibrary(ToNumber(library)); });
  }
  static Result LibraryGetKernel(Kernel* kernel, Library, const char* name) {
    return Without("cuLibraryGetKernel", [&] {
      *kernel = reinterpret_cast<Kernel>(Fake().primary().FindKernel(name));
      return *kernel != nullptr ? Result::kSuccess : Result::kNotFound;
    });
  }
  static Result KernelGetFunction(Function* function, Kernel kernel) {
    return WithContext("cuKernelGetFunction", [&] {
      *function = reinterpret_cast<Function>(
          Fake().primary().FunctionOf(*reinterpret_cast<const FakeKernel*>(kernel), FakeDriver::Device()));
      return Result::kSuccess;
    });
  }
  static Result FuncLoad(Function function) {
    return WithContext("cuFuncLoad", [&] { return Fake().LoadFunction(reinterpret_cast<FakeKernel*>(function)); });
  }
  static Result LaunchKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned, unsigned block_x, unsigned,
                             unsigned, unsigned, Stream stream, void** parameters, void**) {
    int number = 0;
    bool blocks = false;
    const Result launched = WithContext("cuLaunchKernel", [&] {
      number = OfStream(stream);
      blocks = Fake().options().launches_block;
      return Fake().Launch(reinterpret_cast<FakeKernel*>(function), grid_x, grid_y, block_x, number, parameters);
    });
    return launched == Result::kSuccess && blocks ? Fake().gpu().Synchronize(number) : launched;
  }
};

}  // namespace
}  // namespace annulus::cuda

extern "C" {

annulus::cuda::Result cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t, int* outcome) {
  using annulus::cuda::Fake;
  using annulus::cuda::Functions;
  using annulus::cuda::Result;
  *function = nullptr;
  *outcome = 0;
  if (Fake().options().missing == name || version > Fake().options().version) return Result::kNotFound;
#define ANNULUS_DRIVER_FUNCTION(Name, symbol, version, parameters) \
  if (std::strcmp(name, "cu" #Name) == 0) *function = reinterpret_cast<void*>(&Functions::Name);
#include "cuda_kernels/driver/driver_functions.inc"
#include "cuda_kernels/driver/driver_optional.inc"
#include "tests/cuda/graph_functions.inc"
#undef ANNULUS_DRIVER_FUNCTION
  return *function != nullptr ? Result::kSuccess : Result::kNotFound;
}

// A program calls it first; the library does not.
int cuInit(unsigned) { return 0; }

// Parts of FakeControl for programs that are not in C++: how much was done wrong so far, and how many threads wait for
// a stream.
int fake_cuda_violations() { return static_cast<int>(annulus::cuda::Fake().Violations().size()); }
int fake_cuda_waiting() { return annulus::cuda::Fake().Counts().waiting; }
void fake_cuda_hold(int holds) { annulus::cuda::Fake().Hold(holds != 0); }

annulus::cuda::FakeControl* fake_cuda_control() { return &annulus::cuda::Fake(); }

}  // extern "C"
