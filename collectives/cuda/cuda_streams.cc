#include "collectives/cuda/cuda_streams.h"

#include <utility>

namespace annulus {
namespace {

constexpr size_t kWordBytes = 64;  // A cache line each: the CPU polls one while the GPU writes another.
constexpr size_t kWordsBytes = CudaStreams::kWords * kWordBytes;
constexpr size_t kListBytes = cuda::kMostListed * sizeof(std::byte*);
constexpr size_t kListsBytes = CudaStreams::kWords * 2 * kListBytes;
constexpr size_t kPinnedBytes = kWordsBytes + kListsBytes + CudaStreams::kStagingBytes;
// Above what the user's streams have by default: a rank that waits for a slice holds up the others.
constexpr int kPriority = -1;

}  // namespace

Status CudaStreams::Open(const CudaDevice& device, std::unique_ptr<CudaStreams>* streams) {
  std::unique_ptr<CudaStreams> opened(new CudaStreams(device));
  ANNULUS_RETURN_IF_ERROR(opened->Allocate());
  *streams = std::move(opened);
  return Status();
}

Status CudaStreams::ToStatus(cuda::Result result, const char* function) const {
  return device_.driver().ToStatus(result, function);
}

Status CudaStreams::Allocate() {
  const cuda::Driver& driver = device_.driver();
  const cuda::ScopedContext scope(driver, device_.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  ANNULUS_RETURN_IF_ERROR(pinned_.Open(kPinnedBytes));
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->MemAlloc(&counters_, kWordsBytes), "cuMemAlloc"));
  for (cuda::Stream& stream : streams_) {
    ANNULUS_RETURN_IF_ERROR(ToStatus(driver->StreamCreateWithPriority(&stream, cuda::kStreamNonBlocking, kPriority),
                                     "cuStreamCreateWithPriority"));
  }
  // In the stream of the kernels, so before the first of them: our streams wait for no other.
  ANNULUS_RETURN_IF_ERROR(
      ToStatus(driver->MemsetD8Async(counters_, 0, kWordsBytes, StreamOf(Kind::kKernels)), "cuMemsetD8Async"));
  // Some systems cannot write words from a stream: that is known now, not with the first copy.
  const cuda::Result written = driver->StreamWriteValue32(StreamOf(Kind::kKernels), cuda::ToDevice(WordAt(kWords - 1)),
                                                          1, cuda::kWriteValueDefault);
  const Status status = ToStatus(written, "cuStreamWriteValue32");
  if (written != cuda::Result::kNotSupported) return status;
  return {Code::kUnsupported, device_.name() + " cannot tell when a copy is done: " + status.message()};
}

CudaStreams::~CudaStreams() {
  const cuda::Driver& driver = device_.driver();
  const DeviceScope scope(device_);
  // The context is gone, and with it all that was in it.
  if (!scope.status().ok()) return;
  for (const cuda::Stream stream : streams_) {
    if (stream == nullptr) continue;
    // The first work of a stream is our own, and nobody may have waited for it.
    driver->StreamSynchronize(stream);
    driver->StreamDestroy(stream);
  }
  if (counters_ != 0) driver->MemFree(counters_);
}

template <class Call>
Status CudaStreams::InContext(const char* function, Call call) const {
  const cuda::ScopedContext scope(device_.driver(), device_.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  return ToStatus(call(device_.driver()), function);
}

Status CudaStreams::Copy(Kind kind, std::byte* to, const std::byte* from, size_t bytes, bool from_host) {
  return InContext("cuMemcpyAsync", [&](const cuda::Driver& driver) {
    return driver.Copy(to, from, bytes, kind == Kind::kToDevice && from_host, StreamOf(kind));
  });
}

Status CudaStreams::Signal(Kind kind, int word, uint32_t value) {
  return InContext("cuStreamWriteValue32", [&](const cuda::Driver& driver) {
    return driver->StreamWriteValue32(StreamOf(kind), cuda::ToDevice(WordAt(word)), value, cuda::kWriteValueDefault);
  });
}

Status CudaStreams::Launch(cuda::Function kernel, cuda::KernelBatch* batch, unsigned slices, unsigned blocks) {
  void* parameters[] = {batch};
  return InContext("cuLaunchKernel", [&](const cuda::Driver& driver) {
    return driver->LaunchKernel(kernel, blocks, slices, 1, cuda::kThreadsPerBlock, 1, 1, 0, StreamOf(Kind::kKernels),
                                parameters, nullptr);
  });
}

Status CudaStreams::Synchronize() {
  const cuda::Driver& driver = device_.driver();
  const DeviceScope scope(device_);
  Status status = scope.status();
  if (!status.ok()) return status;
  for (const cuda::Stream stream : streams_) {
    const Status each = ToStatus(driver->StreamSynchronize(stream), "cuStreamSynchronize");
    if (status.ok()) status = each;
  }
  return status;
}

Status CudaStreams::Check() {
  const cuda::Driver& driver = device_.driver();
  const DeviceScope scope(device_);
  ANNULUS_RETURN_IF_ERROR(scope.status());
  for (const cuda::Stream stream : streams_) {
    const cuda::Result result = driver->StreamQuery(stream);
    if (result != cuda::Result::kNotReady)
      ANNULUS_RETURN_IF_ERROR(ToStatus(result, "a GPU's work failed: cuStreamQuery"));
  }
  return Status();
}

uint32_t* CudaStreams::WordAt(int word) const {
  return reinterpret_cast<uint32_t*>(pinned_.data() + static_cast<size_t>(word) * kWordBytes);
}
uint32_t* CudaStreams::CounterAt(int word) const {
  return cuda::FromDevice<uint32_t>(counters_ + static_cast<size_t>(word) * kWordBytes);
}
const std::byte** CudaStreams::ListAt(int word) const {
  return reinterpret_cast<const std::byte**>(pinned_.data() + kWordsBytes + static_cast<size_t>(word) * 2 * kListBytes);
}
std::byte** CudaStreams::TargetsAt(int word) const {
  return reinterpret_cast<std::byte**>(reinterpret_cast<std::byte*>(ListAt(word)) + kListBytes);
}
std::span<std::byte> CudaStreams::staging() const {
  return {pinned_.data() + kWordsBytes + kListsBytes, kStagingBytes};
}

}  // namespace annulus
