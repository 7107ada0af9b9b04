#include "collectives/cuda/graphs/cuda_graph_call.h"

#include <new>
#include <string>
#include <utility>

namespace annulus {
namespace {

constexpr size_t kWordsBytes = StreamCalls::kAlignment;
static_assert(sizeof(StreamWords) <= kWordsBytes);
// Pages are pinned as a whole.
constexpr size_t kPageBytes = 4096;
// The device waits for the gate together with what lies behind it, as one word of 64 bits. It sees a bit in either.
constexpr size_t kForGoodOffset = offsetof(StreamWords, gate) + sizeof(uint32_t);
static_assert(offsetof(StreamWords, gate) % sizeof(uint64_t) == 0);
static_assert(offsetof(StreamWords, over) >= kForGoodOffset + sizeof(uint32_t));
constexpr uint64_t kAnyBit = UINT64_MAX;

}  // namespace

CudaGraphCall::CudaGraphCall(std::unique_ptr<PinnedMemory> memory, const CudaDevice& device, size_t bytes,
                             std::shared_ptr<GraphBell> bell)
    : GraphCall(new (memory->data()) StreamWords(), std::move(bell)),
      device_(device),
      bytes_(bytes),
      pinned_(std::move(memory)),
      memory_(pinned_->data()) {}

Status CudaGraphCall::ToStatus(cuda::Result result, const char* function) const {
  Status status = device_.driver().ToStatus(result, function);
  const bool is_unsupported =
      result == cuda::Result::kNotSupported || result == cuda::Result::kStreamCaptureUnsupported;
  if (!is_unsupported) return status;
  return {Code::kUnsupported, device_.name() + " cannot have calls in graphs: " + status.message()};
}

Status CudaGraphCall::Check(const CudaDevice& device) {
  const cuda::Driver& driver = device.driver();
  const bool has_functions = driver->StreamGetCaptureInfo != nullptr && driver->StreamWaitValue64 != nullptr &&
                             driver->LaunchHostFunc != nullptr && driver->UserObjectCreate != nullptr &&
                             driver->UserObjectRelease != nullptr && driver->GraphRetainUserObject != nullptr;
  if (!has_functions) return {Code::kUnsupported, "stream is captured into a graph, for which the driver is too old"};
  if (device.waits_for_64_bits()) return Status();
  return {Code::kUnsupported,
          "stream is captured into a graph, but " + device.name() + " cannot wait for words of 64 bits"};
}

size_t CudaGraphCall::PinnedBytes(size_t bytes) {
  return (kWordsBytes + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

Status CudaGraphCall::Open(const CudaDevice& device, size_t bytes, std::shared_ptr<GraphBell> bell,
                           std::unique_ptr<CudaGraphCall>* call) {
  auto memory = std::make_unique<PinnedMemory>(device);
  ANNULUS_RETURN_IF_ERROR(memory->Open(PinnedBytes(bytes)));
  call->reset(new CudaGraphCall(std::move(memory), device, bytes, std::move(bell)));
  return Status();
}

std::byte* CudaGraphCall::staging() const { return memory_ + kWordsBytes; }

uint32_t* CudaGraphCall::for_good() const { return reinterpret_cast<uint32_t*>(memory_ + kForGoodOffset); }

void CudaGraphCall::OpenForGood() { __atomic_store_n(for_good(), 1, __ATOMIC_SEQ_CST); }
bool CudaGraphCall::IsOpenForGood() const { return __atomic_load_n(for_good(), __ATOMIC_SEQ_CST) != 0; }

void CudaGraphCall::BeginAnew(std::shared_ptr<GraphBell> bell) {
  __atomic_store_n(for_good(), 0, __ATOMIC_SEQ_CST);
  __atomic_store_n(&words()->gate, 0, __ATOMIC_SEQ_CST);
  is_held_ = false;
  inputs_.clear();
  outputs_.clear();
  Renew(std::move(bell));
}

Status CudaGraphCall::Hold(cuda::Graph graph) {
  const cuda::Driver& driver = device_.driver();
  cuda::UserObject object = nullptr;
  ANNULUS_RETURN_IF_ERROR(
      ToStatus(driver->UserObjectCreate(&object, this, OnEnd, 1, cuda::kUserObjectWithoutSync), "cuUserObjectCreate"));
  is_held_ = true;  // Until OnEnd is called, whatever comes now.
  const Status kept =
      ToStatus(driver->GraphRetainUserObject(graph, object, 1, cuda::kMoveUserObject), "cuGraphRetainUserObject");
  if (!kept.ok()) driver->UserObjectRelease(object, 1);
  return kept;
}

Status CudaGraphCall::Record(cuda::Stream user, cuda::Graph graph) {
  const cuda::ScopedContext scope(device_.driver(), device_.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  ANNULUS_RETURN_IF_ERROR(Hold(graph));
  const Status status = RecordAll(user);
  // The program may launch the graph all the same: not every error ends a capture.
  if (!status.ok()) OpenForGood();
  return status;
}

// In the user's stream: branches of the graph do not wait for each other, as its streams would not.
Status CudaGraphCall::RecordAll(cuda::Stream user) {
  const cuda::Driver& driver = device_.driver();
  for (const StreamCopy& copy : inputs_)
    ANNULUS_RETURN_IF_ERROR(ToStatus(driver.Copy(copy.staged, copy.buffer, copy.bytes, false, user), "cuMemcpyAsync"));
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->LaunchHostFunc(user, OnLaunch, this), "cuLaunchHostFunc"));
  const cuda::DevicePointer gate = cuda::ToDevice(&words()->gate);
  ANNULUS_RETURN_IF_ERROR(
      ToStatus(driver->StreamWaitValue64(user, gate, kAnyBit, cuda::kWaitValueAnd), "cuStreamWaitValue64"));
  ANNULUS_RETURN_IF_ERROR(
      ToStatus(driver->StreamWriteValue32(user, gate, 0, cuda::kWriteValueDefault), "cuStreamWriteValue32"));
  for (const StreamCopy& copy : outputs_)
    ANNULUS_RETURN_IF_ERROR(ToStatus(driver.Copy(copy.buffer, copy.staged, copy.bytes, true, user), "cuMemcpyAsync"));
  return Status();
}

}  // namespace annulus
