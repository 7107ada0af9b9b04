// CUDA tensors without a GPU, for tests of the back end for PyTorch: an extension that makes PyTorch's device type CUDA
// out of the stand-in for CUDA's driver (tests/cuda/fake_driver). It brings the device guard, through which streams and
// events go; an allocator with the rules of PyTorch's caching one; and the operators that make tensors and copy them,
// in the order of streams. There are no others: nothing computes on such a tensor.
//
// Threads: any, as PyTorch's.
#include <ATen/EmptyTensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <atomic>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/frameworks/torch_cuda/torch_cuda_gpu.h"

namespace annulus::cuda {
namespace {

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
  Stream watcher = nullptr;  // Null: the event was recorded in a capture, and CUDA does not let the host ask it.
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
  bool isStreamCapturing(const c10::Stream& stream) const { return CaptureOf(stream) != 0; }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    Gpu& gpu = Enter(stream.device_index());
    if (*event == nullptr) {
      auto* const made = new WatchedEvent;
      Must(gpu->EventCreate(&made->event, kEventWithoutTime), "new event");
      *event = made;
    }
    auto& own = *static_cast<WatchedEvent*>(*event);
    Must(gpu->EventRecord(own.event, HandleOf(stream)), "record");
    if (own.watcher != nullptr) Must(gpu->StreamDestroy(std::exchange(own.watcher, nullptr)), "destroy");
    if (isStreamCapturing(stream)) return;
    own.watcher = gpu.NewStream(stream.device_index());
    Must(gpu->StreamWaitEvent(own.watcher, own.event, 0), "watch");
  }
  void block(void* event, const c10::Stream& stream) const override {
    Must(Enter(stream.device_index())->StreamWaitEvent(HandleOf(stream), static_cast<WatchedEvent*>(event)->event, 0),
         "wait");
  }
  bool queryEvent(void* event) const override {
    return Enter(CurrentDevice())->StreamQuery(WatcherOf(event)) == Result::kSuccess;
  }
  void synchronizeEvent(void* event) const override {
    Must(Enter(CurrentDevice())->StreamSynchronize(WatcherOf(event)), "synchronize");
  }
  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    auto* const own = static_cast<WatchedEvent*>(event);
    Gpu& gpu = Enter(device);
    Must(gpu->EventDestroy(own->event), "destroy");
    if (own->watcher != nullptr) Must(gpu->StreamDestroy(own->watcher), "destroy");
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

  static uint64_t CaptureOf(const c10::Stream& stream) {
    return Gpu::OfProcess().CaptureOf(stream.device_index(), HandleOf(stream));
  }

 private:
  static Stream WatcherOf(void* event) {
    Stream const watcher = static_cast<WatchedEvent*>(event)->watcher;
    TORCH_CHECK(watcher != nullptr, "the host asks an event that was recorded in a capture");
    return watcher;
  }
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
// allocated in, and not before the other streams are done that were recorded. What is allocated in a capture is given
// out again in that capture alone, and not at all if other streams of it use it.
class Allocator final : public c10::Allocator {
 public:
  struct Block {
    std::byte* memory;
    size_t bytes;
    c10::Stream stream;
    uint64_t capture;             // 0: none.
    std::set<Stream> users = {};  // Other streams.
    std::list<void*> events = {};
  };

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Stream stream = TheGuard().getStream(TheGuard().getDevice());
    const uint64_t capture = Guard::CaptureOf(stream);
    bytes = std::max<size_t>(bytes, 1);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      if ((*block)->bytes != bytes || (*block)->stream != stream || (*block)->capture != capture) continue;
      if (IsUsed(*block)) continue;
      Block* const found = *block;
      free_.erase(block);
      ++reused_;
      return Give(found);
    }
    std::byte* const memory = Gpu::OfProcess().control().Allocate(stream.device_index(), bytes);
    return Give(new Block{memory, bytes, stream, capture});
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
    const auto is_captured = [block](Stream user) {
      return Guard::CaptureOf(StreamOf(block->stream.device_index(), user)) != 0;
    };
    if (std::any_of(block->users.begin(), block->users.end(), is_captured)) return;
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
  module.def("begin_capture",
             [](int64_t stream) { Gpu::OfProcess().BeginCapture(reinterpret_cast<annulus::cuda::Stream>(stream)); });
  module.def("end_capture", [](int64_t stream) {
    return reinterpret_cast<int64_t>(Gpu::OfProcess().EndCapture(reinterpret_cast<annulus::cuda::Stream>(stream)));
  });
  // In the current stream.
  module.def("launch", [](int64_t exec) {
    const c10::Stream stream = TheGuard().getStream(TheGuard().getDevice());
    Gpu::OfProcess().Enter(stream.device_index());
    Must(Gpu::OfProcess().graphs().GraphLaunch(reinterpret_cast<GraphExec>(exec), HandleOf(stream)), "launch");
  });
  module.def("destroy_graph", [](int64_t exec) {
    Must(Gpu::OfProcess().graphs().GraphExecDestroy(reinterpret_cast<GraphExec>(exec)), "destroy");
  });
  module.def("user_objects", [] { return Gpu::OfProcess().control().Counts().user_objects; });
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
