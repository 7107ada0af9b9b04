#include "collectives/cuda/cuda_stream_call.h"

#include <bit>
#include <new>

namespace annulus {
namespace {

constexpr size_t kWordsBytes = StreamCalls::kAlignment;
static_assert(sizeof(StreamWords) <= kWordsBytes);
constexpr unsigned kFlags = cuda::kHostAllocPortable | cuda::kHostAllocDeviceMap;
// As the streams of queues: a peer that waits for an input holds up the others.
constexpr int kPriority = -1;

}  // namespace

CudaStreamCall::CudaStreamCall(const CudaDevice& device, void* memory)
    : StreamCall(new (memory) StreamWords()), device_(device), memory_(static_cast<std::byte*>(memory)) {}

Status CudaStreamCall::ToStatus(cuda::Result result, const char* function) const {
  Status status = device_.driver().ToStatus(result, function);
  if (result != cuda::Result::kNotSupported) return status;
  return {Code::kUnsupported, device_.name() + " cannot order calls by streams: " + status.message()};
}

Status CudaStreamCall::Open(const CudaDevice& device, std::unique_ptr<CudaStreamCall>* call) {
  const cuda::Driver& driver = device.driver();
  const cuda::ScopedContext scope(driver, device.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  void* memory = nullptr;
  ANNULUS_RETURN_IF_ERROR(
      driver.ToStatus(driver->MemHostAlloc(&memory, kWordsBytes + kFirstBytes, kFlags), "cuMemHostAlloc"));
  std::unique_ptr<CudaStreamCall> opened(new CudaStreamCall(device, memory));
  ANNULUS_RETURN_IF_ERROR(opened->Create());
  *call = std::move(opened);
  return Status();
}

Status CudaStreamCall::Create() {
  const cuda::Driver& driver = device_.driver();
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->StreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, kPriority),
                                   "cuStreamCreateWithPriority"));
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->EventCreate(&begun_, cuda::kEventWithoutTime), "cuEventCreate"));
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->EventCreate(&ended_, cuda::kEventWithoutTime), "cuEventCreate"));
  // Whether the GPU can do that shows before any call needs it.
  return Write(&words()->over);
}

CudaStreamCall::~CudaStreamCall() {
  const cuda::Driver& driver = device_.driver();
  const cuda::ScopedContext scope(driver, device_.context());
  // The context is gone, and with it all that was in it.
  if (!scope.status().ok()) return;
  if (stream_ != nullptr) {
    driver->StreamSynchronize(stream_);
    driver->StreamDestroy(stream_);
  }
  if (begun_ != nullptr) driver->EventDestroy(begun_);
  if (ended_ != nullptr) driver->EventDestroy(ended_);
  if (grown_ != nullptr) driver->MemFreeHost(grown_);
  driver->MemFreeHost(memory_);
}

std::byte* CudaStreamCall::staging() const { return grown_ != nullptr ? grown_ : memory_ + kWordsBytes; }

size_t CudaStreamCall::memory_bytes() const { return kWordsBytes + kFirstBytes + grown_bytes_; }

size_t CudaStreamCall::GrownBytes(size_t bytes) { return std::bit_ceil(bytes); }

Status CudaStreamCall::Grow(size_t bytes) {
  const cuda::Driver& driver = device_.driver();
  const cuda::ScopedContext scope(driver, device_.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  if (grown_ != nullptr) driver->MemFreeHost(grown_);
  grown_ = nullptr;
  grown_bytes_ = 0;
  void* memory = nullptr;
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->MemHostAlloc(&memory, GrownBytes(bytes), kFlags), "cuMemHostAlloc"));
  grown_ = static_cast<std::byte*>(memory);
  grown_bytes_ = GrownBytes(bytes);
  return Status();
}

Status CudaStreamCall::Copy(const StreamCopy& copy, bool to_device) const {
  const std::byte* const from = to_device ? copy.staged : copy.buffer;
  std::byte* const to = to_device ? copy.buffer : copy.staged;
  return ToStatus(device_.driver().Copy(to, from, copy.bytes, to_device, stream_), "cuMemcpyAsync");
}

Status CudaStreamCall::Enqueue(cuda::Stream user) {
  const cuda::ScopedContext scope(device_.driver(), device_.context());
  Status status = scope.status();
  if (status.ok()) {
    NextValue();
    status = EnqueueAll(user);
    if (status.ok()) return status;
    // What our stream has got so far runs to its end. If this fails too, the place never is free.
    OpenGate();
    static_cast<void>(Leave(user));
  }
  GiveBack();
  return status;
}

Status CudaStreamCall::Write(uint32_t* word) const {
  return ToStatus(
      device_.driver()->StreamWriteValue32(stream_, cuda::ToDevice(word), value(), cuda::kWriteValueDefault),
      "cuStreamWriteValue32");
}

// The user's stream waits for what is before that in the order of the program: so work queues that streams share
// (CUDA_DEVICE_MAX_CONNECTIONS) cannot turn the order round.
Status CudaStreamCall::EnqueueAll(cuda::Stream user) {
  const cuda::Driver& driver = device_.driver();
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->EventRecord(begun_, user), "cuEventRecord"));
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->StreamWaitEvent(stream_, begun_, 0), "cuStreamWaitEvent"));
  for (const StreamCopy& copy : inputs_) ANNULUS_RETURN_IF_ERROR(Copy(copy, false));
  ANNULUS_RETURN_IF_ERROR(Write(&words()->ready));
  ANNULUS_RETURN_IF_ERROR(
      ToStatus(driver->StreamWaitValue32(stream_, cuda::ToDevice(&words()->gate), value(), cuda::kWaitValueReached),
               "cuStreamWaitValue32"));
  for (const StreamCopy& copy : outputs_) ANNULUS_RETURN_IF_ERROR(Copy(copy, true));
  return Leave(user);
}

Status CudaStreamCall::Leave(cuda::Stream user) {
  const cuda::Driver& driver = device_.driver();
  ANNULUS_RETURN_IF_ERROR(Write(&words()->over));
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->EventRecord(ended_, stream_), "cuEventRecord"));
  return ToStatus(driver->StreamWaitEvent(user, ended_, 0), "cuStreamWaitEvent");
}

}  // namespace annulus
