#include "collectives/cuda/cuda_stream_calls.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <utility>

#include "collectives/cuda/cuda_domain.h"
#include "collectives/cuda/fold_memory.h"

namespace annulus {
namespace {

// Times between looks for a free place, which nobody announces: the GPU writes a word.
constexpr Nanoseconds kFirstPause = 20 * kMicrosecond;
constexpr Nanoseconds kLongestPause = kMillisecond;

// A place that grows up to this takes the free ones with it, so that later calls find them ready: 256 MiB with all 16.
// Larger ones would pin more memory than most programs can spare.
constexpr size_t kMostGrownTogether = size_t{16} << 20;

bool IsDefault(cuda::Stream stream) {
  return stream == nullptr || stream == cuda::LegacyStream() || stream == cuda::ThreadStream();
}

}  // namespace

CudaStreamCalls::~CudaStreamCalls() {
  OpenAll();
  OnLost(nullptr);
  watch_.Stop();
  static_cast<void>(CheckUsed());  // So that it is known which places are left for good.
  std::vector<std::unique_ptr<CudaStreamCall>> places;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    places.swap(calls_);
  }
  domain_->Leave(this, std::move(places), graphs_.TakeAll());
}

void CudaStreamCalls::OnLost(std::function<void(const std::string& why)> lost) {
  const std::lock_guard<std::mutex> lock(used_.told_mu);
  used_.lost = std::move(lost);
}

Status CudaStreamCalls::CheckUsed() {
  for (size_t i = 0;; ++i) {
    const CudaDevice* device = nullptr;
    {
      const std::lock_guard<std::mutex> lock(used_.mu);
      if (i == used_.devices.size()) return Status();
      device = used_.devices[i];
    }
    if (!device->IsReset()) continue;
    Status why = device->WhyReset();
    const std::lock_guard<std::mutex> lock(used_.told_mu);
    if (used_.lost) std::exchange(used_.lost, nullptr)(why.message());
    return why;
  }
}

void CudaStreamCalls::NoteUsed(const CudaDevice& device) {
  const std::lock_guard<std::mutex> lock(used_.mu);
  const bool is_known = std::ranges::find(used_.devices, &device) != used_.devices.end();
  if (!is_known) used_.devices.push_back(&device);
}

const CudaDevice* CudaStreamCalls::FindUsed(cuda::Device handle) {
  const std::lock_guard<std::mutex> lock(used_.mu);
  const auto found = std::ranges::find(used_.devices, handle, &CudaDevice::handle);
  return found != used_.devices.end() ? *found : nullptr;
}

bool CudaStreamCalls::LookAfterCalls() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (std::ranges::all_of(calls_, [](const auto& call) { return call->IsFree(); })) return false;
  }
  try {
    return CheckUsed().ok();
  } catch (const std::bad_alloc&) {  // Of the words. There is another look.
    return true;
  }
}

Status CudaStreamCalls::FindContext(cuda::Stream stream, cuda::Context* context, cuda::Device* handle) const {
  const cuda::Driver& driver = domain_->driver();
  const cuda::Result result = driver->StreamGetCtx(stream, context);  // Of a default stream: the current one.
  if (IsDefault(stream) && result == cuda::Result::kInvalidContext)
    return {Code::kUnsupported, "stream is a default stream, but the calling thread has no current GPU"};
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(result, "cuStreamGetCtx"));
  const cuda::ScopedContext scope(driver, *context);
  ANNULUS_RETURN_IF_ERROR(scope.status());
  return driver.ToStatus(driver->CtxGetDevice(handle), "cuCtxGetDevice");
}

Status CudaStreamCalls::FindDevice(cuda::Stream stream, const CudaDevice** device) {
  cuda::Context context = nullptr;
  cuda::Device handle = 0;
  // First: a stream of a context that is gone must not be asked about.
  ANNULUS_RETURN_IF_ERROR(CheckUsed());
  ANNULUS_RETURN_IF_ERROR(FindContext(stream, &context, &handle));
  *device = FindUsed(handle);
  if (*device == nullptr) {
    ANNULUS_RETURN_IF_ERROR(domain_->UseHandle(handle, device));
    NoteUsed(**device);
  }
  if (context == (*device)->context()) return Status();
  return {Code::kUnsupported, "stream belongs to a context that is not the primary one of its GPU"};
}

Status CudaStreamCalls::FindDeviceAgain(cuda::Stream stream, const CudaDevice** device) {
  *device = std::exchange(found_, nullptr);
  return *device != nullptr && found_for_ == stream ? Status() : FindDevice(stream, device);
}

Status CudaStreamCalls::FindCapture(void* stream, StreamCapture* capture) {
  const auto handle = static_cast<cuda::Stream>(stream);
  const CudaDevice* device = nullptr;
  *capture = StreamCapture();
  ANNULUS_RETURN_IF_ERROR(FindDevice(handle, &device));
  const cuda::Driver& driver = device->driver();
  const cuda::ScopedContext scope(driver, device->context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  cuda::CaptureStatus status = cuda::CaptureStatus::kNone;
  const cuda::Result result = driver->StreamIsCapturing(handle, &status);
  if (result == cuda::Result::kStreamCaptureImplicit)
    return {Code::kUnsupported, "stream is a default stream, while another one is captured into a graph"};
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(result, "cuStreamIsCapturing"));
  found_ = device;
  found_for_ = handle;
  if (status == cuda::CaptureStatus::kNone) return Status();
  ANNULUS_RETURN_IF_ERROR(CudaGraphCall::Check(*device));
  cuda::Graph graph = nullptr;
  ANNULUS_RETURN_IF_ERROR(
      driver.ToStatus(driver->StreamGetCaptureInfo(handle, &status, &capture->id, &graph, nullptr, nullptr, nullptr),
                      "cuStreamGetCaptureInfo"));
  capture->graph = graph;
  if (status == cuda::CaptureStatus::kActive) return Status();
  return {Code::kUnsupported, "stream is captured into a graph, and the capture has failed"};
}

Status CudaStreamCalls::AcquireInGraph(void* stream, size_t bytes, const std::shared_ptr<GraphBell>& bell,
                                       Place* place) {
  const CudaDevice* device = nullptr;
  ANNULUS_RETURN_IF_ERROR(FindDevice(static_cast<cuda::Stream>(stream), &device));
  domain_->Enter(this);
  size_t others = 0;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    others = memory_bytes_;
  }
  CudaGraphCall* call = nullptr;
  ANNULUS_RETURN_IF_ERROR(graphs_.Acquire(*device, bytes, most_bytes_ - std::min(most_bytes_, others), bell, &call));
  *place = {call, call->staging(), call->inputs(), call->outputs(), nullptr, call};
  return Status();
}

Status CudaStreamCalls::Acquire(void* stream, int calls, size_t bytes, bool shares, Deadline until, Place* place) {
  const auto handle = static_cast<cuda::Stream>(stream);
  const CudaDevice* user = nullptr;
  ANNULUS_RETURN_IF_ERROR(FindDeviceAgain(handle, &user));
  const CudaDevice& device = shares ? shared_->own->device() : *user;
  ANNULUS_RETURN_IF_ERROR(Prepare(device));
  CudaStreamCall* call = nullptr;
  ANNULUS_RETURN_IF_ERROR(AwaitFree(device, bytes, until, &call));
  if (bytes > call->staging_bytes()) {
    ANNULUS_RETURN_IF_ERROR(Grow(call, bytes, most_bytes_));
    if (CudaStreamCall::GrownBytes(bytes) <= kMostGrownTogether) GrowFree(device, bytes);
  }
  call->Begin(calls, user, shares ? std::shared_ptr<const FoldTurn>(shared_, shared_->own.get()) : nullptr);
  watch_.Wake();
  *place = {call, call->staging(), call->inputs(), call->outputs(), call->program(), nullptr};
  return Status();
}

Status CudaStreamCalls::Share(void* stream, size_t bytes, SharedPlace* place) {
  const CudaDevice* device = nullptr;
  ANNULUS_RETURN_IF_ERROR(FindDevice(static_cast<cuda::Stream>(stream), &device));
  auto shared = std::make_shared<Shared>();
  ANNULUS_RETURN_IF_ERROR(FoldMemory::Open(domain_, *device, bytes, &shared->own));
  *place = shared->own->place();
  domain_->AddFoldMemory(place->begin, shared->own);
  shared_ = std::move(shared);
  return Status();
}

Status CudaStreamCalls::Reach(std::span<const SharedPlace> places, std::vector<std::byte*>* memory) {
  for (const SharedPlace& place : places) {
    if (place.process != domain_->process() || place.begin == shared_->own->place().begin) continue;
    shared_->neighbours.push_back(domain_->FindFoldMemory(place.begin));
    if (shared_->neighbours.back() == nullptr) return {Code::kUnsupported, "a rank of this process has gone"};
  }
  return shared_->own->Reach(places, memory);
}

Status CudaStreamCalls::Prepare(const CudaDevice& device) {
  const auto is_of = [&](const auto& call) { return &call->device() == &device; };
  if (std::ranges::any_of(calls_, is_of)) return Status();
  domain_->Enter(this);
  std::vector<std::unique_ptr<CudaStreamCall>> made(kMostCalls);
  size_t bytes = 0;
  for (auto& call : made) {
    ANNULUS_RETURN_IF_ERROR(CudaStreamCall::Open(device, &call));
    bytes += call->memory_bytes();
  }
  const std::lock_guard<std::mutex> lock(mu_);
  if (memory_bytes_ + graphs_.MemoryBytes() + bytes > most_bytes_) {
    return {Code::kOutOfMemory, "stream-ordered calls need " + std::to_string(bytes) +
                                    " bytes of pinned memory, more than memory_bytes (ANNULUS_MEMORY_BYTES) leaves"};
  }
  memory_bytes_ += bytes;
  std::ranges::move(made, std::back_inserter(calls_));
  return Status();
}

CudaStreamCall* CudaStreamCalls::FindFree(const CudaDevice& device, size_t bytes) const {
  // The smallest that suffices, else the largest.
  CudaStreamCall* best = nullptr;
  for (const auto& call : calls_) {
    if (&call->device() != &device || !call->IsFree()) continue;
    const size_t has = call->staging_bytes();
    const size_t best_has = best != nullptr ? best->staging_bytes() : 0;
    const bool is_better = has >= bytes ? best_has < bytes || has < best_has : best_has < bytes && has > best_has;
    if (best == nullptr || is_better) best = call.get();
  }
  return best;
}

Status CudaStreamCalls::AwaitFree(const CudaDevice& device, size_t bytes, Deadline until, CudaStreamCall** call) {
  std::unique_lock<std::mutex> lock(mu_);
  for (Nanoseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (is_open_) return Status(Code::kAborted, "the communicator has ended");
    *call = FindFree(device, bytes);
    if (*call != nullptr) return Status();
    if (Now() >= until) {
      return {Code::kTimeout,
              "the " + std::to_string(kMostCalls) +
                  " calls that streams of one GPU may have under way did not go on before the deadline"};
    }
    opened_.wait_for(lock, std::chrono::nanoseconds(pause));
  }
}

Status CudaStreamCalls::Grow(CudaStreamCall* call, size_t bytes, size_t most_bytes) {
  const size_t before = call->memory_bytes();
  const size_t grown = call->staging_bytes() > CudaStreamCall::kFirstBytes ? call->staging_bytes() : 0;
  const size_t others = MemoryBytes() - grown;
  if (others > most_bytes || CudaStreamCall::GrownBytes(bytes) > most_bytes - others) {
    return {Code::kOutOfMemory, "a stream-ordered call needs " + std::to_string(CudaStreamCall::GrownBytes(bytes)) +
                                    " bytes of pinned memory, more than memory_bytes (ANNULUS_MEMORY_BYTES) leaves"};
  }
  const Status status = call->Grow(bytes);
  const std::lock_guard<std::mutex> lock(mu_);
  memory_bytes_ += call->memory_bytes();
  memory_bytes_ -= before;
  return status;
}

void CudaStreamCalls::GrowFree(const CudaDevice& device, size_t bytes) {
  for (const auto& call : calls_) {
    if (&call->device() != &device || !call->IsFree() || call->staging_bytes() >= bytes) continue;
    // Half of the memory stays for larger calls and for requests.
    if (!Grow(call.get(), bytes, most_bytes_ / 2).ok()) return;
  }
}

Status CudaStreamCalls::Enqueue(void* stream, const Place& place) {
  if (place.graph_call != nullptr) {
    StreamCapture capture;
    ANNULUS_RETURN_IF_ERROR(FindCapture(stream, &capture));
    return graphs_.Record(static_cast<cuda::Stream>(stream), static_cast<cuda::Graph>(capture.graph),
                          static_cast<CudaGraphCall*>(place.graph_call));
  }
  auto* const call = static_cast<CudaStreamCall*>(place.call);
  ANNULUS_RETURN_IF_ERROR(call->Enqueue(static_cast<cuda::Stream>(stream)));
  const std::lock_guard<std::mutex> lock(mu_);
  if (is_open_) call->OpenGate();
  return Status();
}

Status CudaStreamCalls::Finish(void* stream, const Place& place) {
  return static_cast<CudaStreamCall*>(place.call)->Finish(static_cast<cuda::Stream>(stream));
}

void CudaStreamCalls::GiveBack(const Place& place) {
  if (place.graph_call != nullptr) return graphs_.Recycle(place.graph_call);
  static_cast<CudaStreamCall*>(place.call)->GiveBack();
}

void CudaStreamCalls::OpenAll() {
  graphs_.OpenAll();
  const std::lock_guard<std::mutex> lock(mu_);
  is_open_ = true;
  for (const auto& call : calls_) call->OpenGate();
  opened_.notify_all();
}

size_t CudaStreamCalls::MemoryBytes() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return memory_bytes_ + graphs_.MemoryBytes();
}

}  // namespace annulus
