// FakeGpu: the devices of the stand-in: their memory, their streams, and the thread that does the work.
//
// The thread takes the oldest work of a stream that the seed chooses, after a time that the seed chooses, if events and
// words that it waits for allow it. What a device
// may not access ends all its work with an error, as on a real one. Destinations hold nothing useful while work on them
// is pending, and work in two streams that needs an order and has none is a violation. Work behind a gate may have its
// order from the CPU, which opens the gate when it has seen other work done: so that is judged when it could begin.
//
// Threads: any; one lock guards it all.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda_kernels/reduce_kernel.h"
#include "tests/cuda/fake_driver/fake_control.h"
#include "tests/cuda/fake_driver/fake_graphs.h"
#include "tests/cuda/fake_driver/fake_memory.h"
#include "tests/cuda/fake_driver/fake_streams.h"

namespace annulus::cuda {

class FakeGpu {
 public:
  explicit FakeGpu(const FakeOptions& options);
  ~FakeGpu();

  void SetMistake(Mistake mistake);
  Mistake mistake() const;
  void Hold(bool holds);

  // Calls use(&streams) with the lock held.
  template <class Use>
  auto WithStreams(Use use) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return use(&streams_);
  }
  // All take a stream's number. kNotReady or the device's error.
  Result Query(int stream);
  Result Synchronize(int stream);
  Result DestroyStream(int stream);
  // The result of a use of a stream that is not there.
  Result Unknown(int stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return MissingStream(stream);
  }
  Result DestroyEvent(int event);
  Result Copy(int stream, std::byte* to, const std::byte* from, size_t bytes);
  Result Set(int stream, std::byte* memory, int value, size_t bytes);
  Result WriteWord(int stream, uint32_t* word, uint32_t value);
  Result WaitWord(int stream, const uint32_t* word, uint32_t value);
  // Until the word has any of the value's bits.
  Result WaitBits(int stream, const uint64_t* word, uint64_t value);
  Result RecordEvent(int event, int stream);
  Result WaitEvent(int stream, int event);
  Result CallHost(int stream, std::function<void()> function);
  Result LaunchGraph(int exec, int stream);
  Result Launch(int stream, const std::string& kernel, const KernelBatch& batch, unsigned slices, unsigned blocks,
                unsigned threads);
  // Calls use(&graphs, &streams) with the lock held.
  template <class Use>
  auto WithGraphs(Use use) {
    const std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
    return use(&graphs_, &streams_);
  }
  // The context of a device is gone: its streams, events and memory, and the work under way, which is never done. An
  // error of the device goes too.
  // Returns how many mappings of other processes' memory it had.
  int64_t Lose(int device);
  // Until no stream has work.
  void WaitForAll();
  // Until the stream takes more work. Others go on meanwhile, as if each rank had a driver of its own.
  void AwaitRoom(int stream);

  // Calls use(&memory) with the lock held.
  template <class Use>
  auto WithMemory(Use use) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return use(&memory_);
  }
  void AddViolation(const std::string& violation) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Record(violation);
  }
  // Records a violation when work on a range is pending: `what` says what happens to it.
  void MustBeIdle(const MemoryRange& range, const std::string& what);

  std::vector<std::string> Violations() const;
  void AddCounts(FakeCounts* counts) const;

 private:
  using Work = FakeWork;

  void WorkInThread();
  // Does work that may run, or calls what graphs have left. Gives the lock back meanwhile.
  void RunWork(std::unique_lock<std::mutex>* lock, int chosen);
  void CallDestructors(std::unique_lock<std::mutex>* lock);
  // From here on with the lock held.
  Result Submit(Work work);
  // The result of a use of a stream or event that is not there. A use after its context was reset is a violation.
  Result Missing(bool is_lost);
  Result MissingStream(int stream) { return Missing(streams_.IsLost(stream)); }
  void Poison(const Work& work);
  bool NeedOrder(const Work& a, const Work& b) const;
  bool HasWork(int stream);
  bool Waits(const Work& work) const;
  bool IsBefore(const Work& other, const Work& work) const;
  // Whether work before it, or itself, waits for a word.
  bool IsGated(const Work& work) const;
  // Violations in memory that others can reach say so: there some are harmless after failures.
  Work OutsideExports(const Work& work) const;
  void RecordOrder(const std::string& what, const Work& a, const Work& b);
  // What could run now beside the work of that number must not need an order.
  void CheckOrder(const std::vector<int>& runnable, int chosen);
  // The oldest work of a stream that may be done now; -1: there is none.
  int Choose();
  bool RunSlice(int device, const std::string& kernel, KernelSlice slice, unsigned blocks, unsigned threads);
  bool HasHostOperand(const KernelSlice& slice) const;
  bool SetWord(int device, uint32_t* word, uint32_t value);
  void Record(const std::string& violation);

  const FakeOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  FakeMemory memory_;
  FakeStreams streams_;
  FakeGraphs graphs_;
  std::vector<Work> pending_;        // Oldest first; the work under way is among them.
  Result error_ = Result::kSuccess;  // Sticks.
  Mistake mistake_ = Mistake::kNone;
  std::vector<std::string> violations_;
  FakeCounts counts_;
  bool holds_ = false;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace annulus::cuda
