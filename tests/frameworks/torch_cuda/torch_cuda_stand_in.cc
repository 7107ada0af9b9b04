// CUDA tensors without a GPU, for tests of the back end for PyTorch: an extension that makes PyTorch's device type CUDA
// out of the stand-in for CUDA's driver (tests/cuda/fake_driver). It brings the device guard, through which streams and
// events go; an allocator with the rules of PyTorch's caching one; and the operators that make tensors and copy them,
// in the order of streams. There are no others: nothing computes on such a tensor.
//
// Threads: any, as PyTorch's.
#include <ATen/EmptyTensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/extension.h>

#include <atomic>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda_kernels/driver/driver_types.h"
#include "tests/cuda/fake_driver/fake_control.h"

namespace annulus::cuda {
namespace {

constexpr int kDevices = 2;

void Must(Result result, const char* what) {
  TORCH_CHECK(result == Result::kSuccess, "the stand-in for CUDA: ", what, ": ", static_cast<int>(result));
}

// The stand-in that the process has loaded, and what the tests ask about its use.
class Gpu {
 public:
  static Gpu& OfProcess() {
    static Gpu& gpu = *new Gpu;
    return gpu;
  }

  FakeControl& control() { return *control_; }
  const DriverFunctions* operator->() const { return &functions_; }

  // Makes the device's context the calling thread's, as CUDA's runtime does, and counts the thread.
  void Enter(int device) {
    thread_local int current = -1;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      threads_.insert(std::this_thread::get_id());
    }
    if (current == device) return;
    Context old = nullptr;
    if (current >= 0) Must(functions_.CtxPopCurrent(&old), "pop");
    Must(functions_.CtxPushCurrent(contexts_[device]), "push");
    current = device;
  }
  size_t threads() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return threads_.size();
  }

  Stream NewStream(int device) {
    Enter(device);
    Stream stream = nullptr;
    Must(functions_.StreamCreateWithPriority(&stream, kStreamNonBlocking, 0), "new stream");
    return stream;
  }
  // Never freed: work may use it for long.
  void* AllocatePinned(size_t bytes) {
    Enter(0);
    void* memory = nullptr;
    Must(functions_.MemHostAlloc(&memory, std::max<size_t>(bytes, 1), kHostAllocPortable), "pinned memory");
    return memory;
  }

 private:
  Gpu() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    TORCH_CHECK(library != nullptr, "load the stand-in for CUDA first");
    control_ = reinterpret_cast<GetFakeControl>(dlsym(library, "fake_cuda_control"))();
    FakeOptions options;
    options.devices = kDevices;
    control_->Reset(options);
    using Find = Result (*)(const char*, void**, int, uint64_t, int*);
    const auto find = reinterpret_cast<Find>(dlsym(library, "cuGetProcAddress_v2"));
    int outcome = 0;
#define ANNULUS_DRIVER_FUNCTION(Name, symbol, version, parameters) \
  Must(find("cu" #Name, reinterpret_cast<void**>(&functions_.Name), version, 0, &outcome), #Name);
#include "cuda_kernels/driver/driver_functions.inc"
#undef ANNULUS_DRIVER_FUNCTION
    for (int device = 0; device < kDevices; ++device) {
      Device handle = 0;
      Must(functions_.DeviceGet(&handle, device), "device");
      Must(functions_.DevicePrimaryCtxRetain(&contexts_[device], handle), "context");
    }
  }

  FakeControl* control_ = nullptr;
  DriverFunctions functions_;
  Context contexts_[kDevices] = {};
  std::mutex mutex_;
  std::set<std::thread::id> threads_;  // That have called it.
};

// -- Streams and events ----------------------------------------------------------------------------------------------

// The identity of a stream is its handle; 0 is the default stream.
Stream HandleOf(const c10::Stream& stream) { return reinterpret_cast<Stream>(stream.id()); }
c10::Stream StreamOf(int device, Stream handle) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)),
                     reinterpret_cast<c10::StreamId>(handle));
}

// The table of the stand-in's functions has none to ask an event: a stream that waits for nothing else is asked
// instead.
struct WatchedEvent {
  Event event = nullptr;
  Stream watcher = nullptr;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    if (device != before) setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, CurrentDevice()}; }
  void setDevice(c10::Device device) const override {
    CurrentDevice() = device.index();
    Gpu::OfProcess().Enter(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    const int index = device.has_index() ? device.index() : CurrentDevice();
    return StreamOf(index, CurrentStreams()[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return StreamOf(device.index(), nullptr); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return StreamOf(device.index(), Gpu::OfProcess().NewStream(device.index()));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    CurrentStreams()[stream.device_index()] = HandleOf(stream);
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return HandleOf(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    return Enter(stream.device_index())->StreamQuery(HandleOf(stream)) == Result::kSuccess;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Must(Enter(stream.device_index())->StreamSynchronize(HandleOf(stream)), "synchronize");
  }
  // Not marked as an override: older versions of PyTorch do not ask for it.
  bool isStreamCapturing(const c10::Stream& stream) const {
    CaptureStatus status = CaptureStatus::kNone;
    Must(Enter(stream.device_index())->StreamIsCapturing(HandleOf(stream), &status), "capturing");
    return status != CaptureStatus::kNone;
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    Gpu& gpu = Enter(stream.device_index());
    if (*event == nullptr) {
      auto* const made = new WatchedEvent;
      Must(gpu->EventCreate(&made->event, kEventWithoutTime), "new event");
      *event = made;
    }
    auto& own = *static_cast<WatchedEvent*>(*event);
    Must(gpu->EventRecord(own.event, HandleOf(stream)), "record");
    if (own.watcher != nullptr) Must(gpu->StreamDestroy(own.watcher), "destroy");
    own.watcher = gpu.NewStream(stream.device_index());
    Must(gpu->StreamWaitEvent(own.watcher, own.event, 0), "watch");
  }
  void block(void* event, const c10::Stream& stream) const override {
    Must(Enter(stream.device_index())->StreamWaitEvent(HandleOf(stream), static_cast<WatchedEvent*>(event)->event, 0),
         "wait");
  }
  bool queryEvent(void* event) const override {
    return Enter(CurrentDevice())->StreamQuery(static_cast<WatchedEvent*>(event)->watcher) == Result::kSuccess;
  }
  void synchronizeEvent(void* event) const override {
    Must(Enter(CurrentDevice())->StreamSynchronize(static_cast<WatchedEvent*>(event)->watcher), "synchronize");
  }
  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    auto* const own = static_cast<WatchedEvent*>(event);
    Gpu& gpu = Enter(device);
    Must(gpu->EventDestroy(own->event), "destroy");
    Must(gpu->StreamDestroy(own->watcher), "destroy");
    delete own;
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override;

  static c10::DeviceIndex& CurrentDevice() {
    thread_local c10::DeviceIndex device = 0;
    return device;
  }
  static Stream* CurrentStreams() {
    thread_local Stream streams[kDevices] = {};
    return streams;
  }

 private:
  static Gpu& Enter(int device) {
    Gpu& gpu = Gpu::OfProcess();
    gpu.Enter(device);
    return gpu;
  }
};

const Guard& TheGuard() {
  static const Guard& guard = *new Guard;
  return guard;
}

// -- Memory ----------------------------------------------------------------------------------------------------------

// As PyTorch's caching allocator: memory that was given back is given out again at once to the stream that it was
// allocated in, and not before the other streams are done that were recorded.
class Allocator final : public c10::Allocator {
 public:
  struct Block {
    std::byte* memory;
    size_t bytes;
    c10::Stream stream;
    std::set<Stream> users = {};  // Other streams.
    std::list<void*> events = {};
  };

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Stream stream = TheGuard().getStream(TheGuard().getDevice());
    bytes = std::max<size_t>(bytes, 1);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      if ((*block)->bytes != bytes || (*block)->stream != stream || IsUsed(*block)) continue;
      Block* const found = *block;
      free_.erase(block);
      ++reused_;
      return Give(found);
    }
    std::byte* const memory = Gpu::OfProcess().control().Allocate(stream.device_index(), bytes);
    return Give(new Block{memory, bytes, stream});
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "nothing clones such memory"); }

  void Record(void* block, Stream stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* const own = static_cast<Block*>(block);
    if (own != nullptr && stream != HandleOf(own->stream)) own->users.insert(stream);
  }
  int reused() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return reused_;
  }

  static Allocator& OfProcess() {
    static Allocator& allocator = *new Allocator;
    return allocator;
  }

 private:
  static c10::DataPtr Give(Block* block) {
    return {block->memory, block, [](void* own) { OfProcess().Reclaim(static_cast<Block*>(own)); },
            block->stream.device()};
  }
  static bool IsUsed(Block* block) {
    for (void* const event : block->events) {
      if (!TheGuard().queryEvent(event)) return true;
    }
    for (void* const event : block->events) TheGuard().destroyEvent(event, block->stream.device_index());
    block->events.clear();
    return false;
  }
  void Reclaim(Block* block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Stream user : std::exchange(block->users, {})) {
      block->events.push_back(nullptr);
      TheGuard().record(&block->events.back(), StreamOf(block->stream.device_index(), user), -1,
                        c10::EventFlag::PYTORCH_DEFAULT);
    }
    free_.push_front(block);
  }

  std::mutex mutex_;
  std::list<Block*> free_;
  int reused_ = 0;
};

void Guard::recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const {
  Allocator::OfProcess().Record(data.get_context(), HandleOf(stream));
}

// -- Operators -------------------------------------------------------------------------------------------------------

at::Tensor Empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device.has_value() && device->has_index() ? device : std::nullopt);
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_generic(sizes, &Allocator::OfProcess(), keys, type.value_or(at::kFloat), format);
}

at::Tensor EmptyStrided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> type,
                        std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device.has_value() && device->has_index() ? device : std::nullopt);
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_strided_generic(sizes, strides, &Allocator::OfProcess(), keys, type.value_or(at::kFloat));
}

// Where the elements of a tensor lie, in order.
std::vector<std::byte*> ElementsOf(const at::Tensor& tensor) {
  std::vector<std::byte*> found{static_cast<std::byte*>(tensor.data_ptr())};
  for (int64_t dimension = 0; dimension < tensor.dim(); ++dimension) {
    std::vector<std::byte*> next;
    for (std::byte* const begin : found) {
      for (int64_t i = 0; i < tensor.size(dimension); ++i) {
        next.push_back(begin + i * tensor.stride(dimension) * static_cast<int64_t>(tensor.element_size()));
      }
    }
    found = std::move(next);
  }
  return found;
}

// Enqueues a copy between two tensors of one type and size; host memory must be pinned.
void CopyInStream(const at::Tensor& to, const at::Tensor& from, const c10::Stream& stream) {
  Gpu& gpu = Gpu::OfProcess();
  gpu.Enter(stream.device_index());
  const auto copy = [&](void* target, const void* source, size_t bytes) {
    Must(gpu->MemcpyAsync(ToDevice(target), ToDevice(source), bytes, HandleOf(stream)), "copy");
  };
  if (to.is_contiguous() && from.is_contiguous()) {
    copy(to.data_ptr(), from.data_ptr(), to.nbytes());
    return;
  }
  const std::vector<std::byte*> targets = ElementsOf(to);
  const std::vector<std::byte*> sources = ElementsOf(from);
  for (size_t i = 0; i < targets.size(); ++i) copy(targets[i], sources[i], to.element_size());
}

at::Tensor& Copy(at::Tensor& self, const at::Tensor& source, bool) {
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "the stand-in for CUDA copies between equal types only");
  if (self.numel() == 0) return self;
  const c10::Stream stream = TheGuard().getStream(self.is_cuda() ? self.device() : source.device());
  const at::Tensor from = source.expand(self.sizes());
  if (self.is_cuda() && from.is_cuda()) {
    CopyInStream(self, from, stream);
    return self;
  }
  const at::Tensor pinned =
      at::from_blob(Gpu::OfProcess().AllocatePinned(self.nbytes()), self.sizes(), self.options().device(at::kCPU));
  if (self.is_cuda()) {
    pinned.copy_(from);
    CopyInStream(self, pinned, stream);
  } else {
    CopyInStream(pinned, from, stream);
    TheGuard().synchronizeStream(stream);
    self.copy_(pinned);
  }
  return self;
}

}  // namespace
}  // namespace annulus::cuda

static c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &annulus::cuda::TheGuard());

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &annulus::cuda::Empty);
  library.impl("empty_strided", &annulus::cuda::EmptyStrided);
  library.impl("copy_", &annulus::cuda::Copy);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace annulus::cuda;  // NOLINT
  module.def("hold", [](bool holds) { Gpu::OfProcess().control().Hold(holds); });
  module.def("violations", [] { return Gpu::OfProcess().control().Violations(); });
  module.def("waiting", [] { return Gpu::OfProcess().control().Counts().waiting; });
  module.def("pending", [] { return Gpu::OfProcess().control().Counts().pending; });
  module.def("threads", [] { return Gpu::OfProcess().threads(); });
  module.def("reused", [] { return Allocator::OfProcess().reused(); });
  module.def("capture", [](int64_t stream, bool captures) {
    Gpu::OfProcess().control().Capture(reinterpret_cast<annulus::cuda::Stream>(stream), captures);
  });
  module.def("new_stream", [](int device) { return StreamOf(device, Gpu::OfProcess().NewStream(device)).id(); });
  // Returns the stream that was current.
  module.def("exchange_stream", [](int device, int64_t stream) {
    return TheGuard().exchangeStream(StreamOf(device, reinterpret_cast<annulus::cuda::Stream>(stream))).id();
  });
  module.def("synchronize", [](int device) {
    const pybind11::gil_scoped_release unlocked;
    TheGuard().synchronizeStream(TheGuard().getStream({c10::kCUDA, static_cast<c10::DeviceIndex>(device)}));
  });
}
