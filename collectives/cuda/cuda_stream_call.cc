#include "collectives/cuda/cuda_stream_call.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "collectives/cuda/kernel_form.h"
#include "cuda_kernels/reduce_kernel.h"

namespace annulus {
namespace {

constexpr size_t kWordsBytes = StreamCalls::kAlignment;
static_assert(sizeof(StreamWords) <= kWordsBytes);
// As the streams of queues: a peer that waits for an input holds up the others.
constexpr int kPriority = -1;

}  // namespace

CudaStreamCall::CudaStreamCall(const CudaDevice& device, std::unique_ptr<PinnedMemory> memory)
    : StreamCall(new (memory->data()) StreamWords()), device_(device), memory_(std::move(memory)), grown_(device) {}

Status CudaStreamCall::ToStatus(cuda::Result result, const char* function) const {
  Status status = device_.driver().ToStatus(result, function);
  if (result != cuda::Result::kNotSupported) return status;
  return {Code::kUnsupported, device_.name() + " cannot order calls by streams: " + status.message()};
}

Status CudaStreamCall::Open(const CudaDevice& device, std::unique_ptr<CudaStreamCall>* call) {
  const cuda::Driver& driver = device.driver();
  const cuda::ScopedContext scope(driver, device.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  auto memory = std::make_unique<PinnedMemory>(device);
  ANNULUS_RETURN_IF_ERROR(memory->Open(kWordsBytes + kFirstBytes));
  std::unique_ptr<CudaStreamCall> opened(new CudaStreamCall(device, std::move(memory)));
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
  return Write(&words()->over, value());
}

CudaStreamCall::~CudaStreamCall() {
  const cuda::Driver& driver = device_.driver();
  const DeviceScope scope(device_);
  // The context is gone, and with it all that was in it.
  if (!scope.status().ok()) return;
  if (stream_ != nullptr) {
    driver->StreamSynchronize(stream_);
    driver->StreamDestroy(stream_);
  }
  if (begun_ != nullptr) driver->EventDestroy(begun_);
  if (ended_ != nullptr) driver->EventDestroy(ended_);
}

std::byte* CudaStreamCall::staging() const {
  return grown_.data() != nullptr ? grown_.data() : memory_->data() + kWordsBytes;
}

size_t CudaStreamCall::memory_bytes() const { return kWordsBytes + kFirstBytes + grown_.bytes(); }

size_t CudaStreamCall::GrownBytes(size_t bytes) { return std::bit_ceil(bytes); }

Status CudaStreamCall::Grow(size_t bytes) { return grown_.Open(GrownBytes(bytes)); }

void CudaStreamCall::Begin(int calls, const CudaDevice* user, std::shared_ptr<const FoldTurn> shared) {
  SetCalls(calls);
  user_ = user;
  if (shared != nullptr) shared_ = std::move(shared);
  inputs_.clear();
  outputs_.clear();
  program_.Clear();
  progress_ = Progress();
}

Status CudaStreamCall::Copy(std::byte* to, const std::byte* from, size_t bytes, bool to_device) const {
  return ToStatus(device_.driver().Copy(to, from, bytes, to_device, stream_), "cuMemcpyAsync");
}

// The user's stream waits for what is before that in the order of the program: so work queues that streams share
// (CUDA_DEVICE_MAX_CONNECTIONS) cannot turn the order round.
Status CudaStreamCall::Enqueue(cuda::Stream user) {
  const cuda::ScopedContext scope(device_.driver(), device_.context());
  Status status = scope.status();
  if (status.ok()) {
    NextUse(program_.empty() ? 1 : program_.last);
    status = Follow(user);
    if (status.ok()) status = program_.empty() ? EnqueueInputs() : EnqueueSteps(true);
    if (status.ok() && !IsDeep()) status = EnqueueRest(user);
    if (status.ok()) return status;
    status = Undo(user, std::move(status));
  }
  GiveBack();
  return status;
}

Status CudaStreamCall::Finish(cuda::Stream user) {
  if (progress_.is_whole) return Status();
  const cuda::ScopedContext scope(device_.driver(), device_.context());
  Status status = scope.status();
  if (status.ok()) status = EnqueueRest(user);
  return status.ok() ? status : Undo(user, std::move(status));
}

Status CudaStreamCall::EnqueueRest(cuda::Stream user) {
  ANNULUS_RETURN_IF_ERROR(program_.empty() ? EnqueueOutputs() : EnqueueSteps(false));
  ANNULUS_RETURN_IF_ERROR(Leave(user));
  progress_.is_whole = true;
  return Status();
}

// What our stream has got so far runs to its end. If this fails too, the place never is free.
Status CudaStreamCall::Undo(cuda::Stream user, Status status) {
  OpenGate();
  static_cast<void>(Leave(user));
  return status;
}

Status CudaStreamCall::Write(uint32_t* word, uint32_t value) const {
  return ToStatus(device_.driver()->StreamWriteValue32(stream_, cuda::ToDevice(word), value, cuda::kWriteValueDefault),
                  "cuStreamWriteValue32");
}

Status CudaStreamCall::Await(uint32_t value) const {
  return ToStatus(
      device_.driver()->StreamWaitValue32(stream_, cuda::ToDevice(&words()->gate), value, cuda::kWaitValueReached),
      "cuStreamWaitValue32");
}

Status CudaStreamCall::Follow(cuda::Stream user) {
  const cuda::Driver& driver = device_.driver();
  if (user_ == &device_) {
    ANNULUS_RETURN_IF_ERROR(ToStatus(driver->EventRecord(begun_, user), "cuEventRecord"));
    return ToStatus(driver->StreamWaitEvent(stream_, begun_, 0), "cuStreamWaitEvent");
  }
  const cuda::ScopedContext scope(driver, user_->context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  cuda::Event begun = nullptr;
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->EventCreate(&begun, cuda::kEventWithoutTime), "cuEventCreate"));
  Status status = ToStatus(driver->EventRecord(begun, user), "cuEventRecord");
  if (status.ok()) status = ToStatus(driver->StreamWaitEvent(stream_, begun, 0), "cuStreamWaitEvent");
  driver->EventDestroy(begun);
  return status;
}

Status CudaStreamCall::EnqueueInputs() {
  for (const StreamCopy& copy : inputs_) ANNULUS_RETURN_IF_ERROR(Copy(copy.staged, copy.buffer, copy.bytes, false));
  ANNULUS_RETURN_IF_ERROR(Write(&words()->ready, value()));
  return Await(value());
}

Status CudaStreamCall::EnqueueOutputs() {
  for (const StreamCopy& copy : outputs_) ANNULUS_RETURN_IF_ERROR(Copy(copy.buffer, copy.staged, copy.bytes, true));
  return Status();
}

// The program before this one, in whatever place, has left the shared memory first.
Status CudaStreamCall::EnqueueSteps(bool up_to_gate) {
  const cuda::Driver& driver = device_.driver();
  if (!progress_.has_turn)
    ANNULUS_RETURN_IF_ERROR(ToStatus(driver->StreamWaitEvent(stream_, shared_->turn, 0), "cuStreamWaitEvent"));
  progress_.has_turn = true;
  while (progress_.steps < program_.steps.size()) {
    const StreamStep& step = program_.steps[progress_.steps++];
    switch (step.kind) {
      case StreamStep::Kind::kCopy:
        ANNULUS_RETURN_IF_ERROR(Copy(step.to, step.from, step.bytes, step.from_host));
        break;
      case StreamStep::Kind::kFold:
        ANNULUS_RETURN_IF_ERROR(Launch(progress_.folded, step.number));
        progress_.folded += step.number;
        break;
      case StreamStep::Kind::kSay:
        ANNULUS_RETURN_IF_ERROR(Write(&words()->ready, begin() + step.number));
        break;
      case StreamStep::Kind::kAwait:
        ANNULUS_RETURN_IF_ERROR(Await(begin() + step.number));
        if (up_to_gate) return Status();
        break;
    }
  }
  return Status();
}

Status CudaStreamCall::Launch(size_t first, unsigned folds) const {
  cuda::KernelBatch batch;
  cuda::Function kernel = nullptr;
  size_t most_bytes = 0;
  for (unsigned i = 0; i < folds; ++i) {
    const SliceOp op = PlainForm(program_.folds[first + i]);
    kernel = device_.KernelFor(op.type, op.op);  // The same for all.
    cuda::KernelSlice& slice = batch.slices[i];
    slice.dst[0] = op.dst[0];
    for (int k = 0; k < std::min(op.num_sources, 2); ++k)
      slice.src[k] = op.num_sources > 2 ? op.src[k] : op.inline_src[k];
    slice.many = op.src;
    slice.count = op.count;
    slice.divisor = op.divisor;
    slice.num_sources = static_cast<int16_t>(op.num_sources);
    slice.done = program_.done + i;
    slice.finished_blocks = shared_->counters + i;
    most_bytes = std::max(most_bytes, op.count * TypeBytes(op.type));
  }
  if (kernel == nullptr) return {Code::kUnsupported, device_.name() + " has no kernel for this operation"};
  void* parameters[] = {&batch};
  const unsigned blocks = BlocksFor(folds, most_bytes, false, device_.multiprocessors());
  return ToStatus(device_.driver()->LaunchKernel(kernel, blocks, folds, 1, cuda::kThreadsPerBlock, 1, 1, 0, stream_,
                                                 parameters, nullptr),
                  "cuLaunchKernel");
}

Status CudaStreamCall::Leave(cuda::Stream user) {
  const cuda::Driver& driver = device_.driver();
  ANNULUS_RETURN_IF_ERROR(Write(&words()->over, value()));
  // Where our stream did not come to wait for the program before this one, that one still has the turn.
  if (progress_.has_turn)
    ANNULUS_RETURN_IF_ERROR(ToStatus(driver->EventRecord(shared_->turn, stream_), "cuEventRecord"));
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->EventRecord(ended_, stream_), "cuEventRecord"));
  const cuda::ScopedContext scope(driver, user_->context());  // A default stream is that of the current context.
  ANNULUS_RETURN_IF_ERROR(scope.status());
  return ToStatus(driver->StreamWaitEvent(user, ended_, 0), "cuStreamWaitEvent");
}

}  // namespace annulus
