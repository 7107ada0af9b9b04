// The thread of FakeGpu, and what streams do beside copies and kernels: words, events, functions of the host, graphs.
#include <chrono>
#include <utility>

#include "tests/cuda/fake_driver/fake_gpu.h"

namespace annulus::cuda {
namespace {

constexpr std::chrono::microseconds kLookAgain(20);

}  // namespace

Result FakeGpu::WaitBits(int stream, const uint64_t* word, uint64_t value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mistake_ == Mistake::kNoGate) return Result::kSuccess;
  const int device = streams_.DeviceOf(stream);
  const auto* const bytes = reinterpret_cast<const std::byte*>(word);
  const auto place = [=, this] {
    return reinterpret_cast<const uint32_t*>(memory_.Access(device, bytes, sizeof(value)));
  };
  // The halves are words of their own to those who write them.
  Work work{stream, {{bytes, sizeof(value)}}, {}, [=] { return place() != nullptr; }};
  work.may_run = [=, this] {
    if (place() == nullptr) return true;
    const uint64_t low = __atomic_load_n(place(), __ATOMIC_ACQUIRE);
    const uint64_t high = mistake_ == Mistake::kHalfWords ? 0 : __atomic_load_n(place() + 1, __ATOMIC_ACQUIRE);
    return mistake_ != Mistake::kClosedGate && ((high << 32 | low) & value) != 0;
  };
  return Submit(std::move(work));
}

Result FakeGpu::RecordEvent(int event, int stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!streams_.HasEvent(event)) return Missing(streams_.IsLostEvent(event));
  if (!streams_.Has(stream)) return MissingStream(stream);
  graphs_.ForgetRecord(event);
  graphs_.IsCaptured(stream) ? graphs_.Record(event, stream) : streams_.Record(event, stream);
  return Result::kSuccess;
}

Result FakeGpu::WaitEvent(int stream, int event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!streams_.HasEvent(event)) return Missing(streams_.IsLostEvent(event));
  if (!streams_.Has(stream)) return MissingStream(stream);
  Result result = Result::kSuccess;
  if (graphs_.Wait(stream, event, &result)) return result;
  if (mistake_ != Mistake::kNoEvent) streams_.Wait(stream, event);
  return error_;
}

Result FakeGpu::DestroyEvent(int event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return streams_.DestroyEvent(event) ? Result::kSuccess : Missing(streams_.IsLostEvent(event));
}

Result FakeGpu::Missing(bool is_lost) {
  if (!is_lost) return Result::kInvalidValue;
  Record("a stream or event of a context that was reset is used");
  return Result::kInvalidHandle;
}

int64_t FakeGpu::Lose(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(pending_, [=, this](const Work& work) { return streams_.DeviceOf(work.stream) == device; });
  streams_.Lose(device);
  error_ = Result::kSuccess;
  changed_.notify_all();
  return memory_.Lose(device);
}

Result FakeGpu::CallHost(int stream, std::function<void()> function) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Work work{stream, {}, {}, nullptr};
  work.host = std::move(function);
  return Submit(std::move(work));
}

Result FakeGpu::LaunchGraph(int exec, int stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!streams_.Has(stream)) return Result::kInvalidValue;
  return graphs_.Launch(exec, stream, &streams_, [this](Work work) { return Submit(std::move(work)); });
}

void FakeGpu::CallDestructors(std::unique_lock<std::mutex>* lock) {
  const auto due = graphs_.Collect([this](int stream) { return HasWork(stream); }, &streams_);
  lock->unlock();
  for (const auto& destroy : due) destroy();
  lock->lock();
}

void FakeGpu::RunWork(std::unique_lock<std::mutex>* lock, int chosen) {
  const auto work = pending_.begin() + chosen;
  if (work->host == nullptr) {
    if (error_ == Result::kSuccess && !work->run()) error_ = Result::kIllegalAddress;
    pending_.erase(work);
    return;
  }
  const int stream = work->stream;
  const uint64_t number = work->number;
  const std::function<void()> host = work->host;
  if (error_ == Result::kSuccess) {
    lock->unlock();
    host();
    lock->lock();
  }
  std::erase_if(pending_, [=](const Work& each) { return each.stream == stream && each.number == number; });
}

void FakeGpu::WorkInThread() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stops_) {
    changed_.wait(lock, [this] { return stops_ || graphs_.HasToCollect() || (!pending_.empty() && !holds_); });
    if (graphs_.HasToCollect()) CallDestructors(&lock);
    const auto most = static_cast<uint64_t>(options_.most_delay_us) * 1000 + 1;
    changed_.wait_for(lock, std::chrono::nanoseconds(random_() % most), [this] { return stops_; });
    if (stops_ || pending_.empty() || holds_) continue;
    const int chosen = Choose();
    if (chosen < 0) {  // The CPU stores words without telling.
      changed_.wait_for(lock, kLookAgain, [this] { return stops_; });
      continue;
    }
    RunWork(&lock, chosen);
    changed_.notify_all();
  }
}

}  // namespace annulus::cuda
