#include "tests/cuda/fake_driver/fake_gpu.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "cuda_kernels/reduce_on_host.h"

namespace annulus::cuda {
namespace {

constexpr int kPoison = 0xdb;

bool AnyOverlap(const std::vector<MemoryRange>& left, const std::vector<MemoryRange>& right) {
  return std::any_of(left.begin(), left.end(), [&](const MemoryRange& a) {
    return std::any_of(right.begin(), right.end(), [&](const MemoryRange& b) { return a.Overlaps(b); });
  });
}

DataType TypeOf(const std::string& kernel) {
  for (int type = 0; type < kNumDataTypes; ++type) {
    const std::string prefix = std::string("annulus_") + TypeName(static_cast<DataType>(type)) + "_";
    if (kernel.starts_with(prefix)) return static_cast<DataType>(type);
  }
  return DataType::kUint8;
}

const std::byte* SourceOf(const KernelSlice& slice, int i) {
  return slice.num_sources > 2 ? slice.many[i] : slice.src[i];
}

MemoryRange WordRange(const uint32_t* word) { return {reinterpret_cast<const std::byte*>(word), sizeof(*word)}; }

}  // namespace

FakeGpu::FakeGpu(const FakeOptions& options) : options_(options), random_(options.seed), memory_(options) {
  thread_ = std::thread([this] { WorkInThread(); });
}

FakeGpu::~FakeGpu() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void FakeGpu::SetMistake(Mistake mistake) {
  const std::lock_guard<std::mutex> lock(mutex_);
  mistake_ = mistake;
}

Mistake FakeGpu::mistake() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return mistake_;
}

void FakeGpu::Hold(bool holds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  holds_ = holds;
  changed_.notify_all();
}

bool FakeGpu::HasWork(int stream) {
  if (!streams_.Has(stream)) return false;
  const FakeStreams::Clock& clock = streams_.ClockOf(stream);
  return std::any_of(pending_.begin(), pending_.end(), [&](const Work& work) {
    const auto found = clock.find(work.stream);
    return found != clock.end() && work.number <= found->second;
  });
}

Result FakeGpu::Query(int stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (graphs_.IsCaptured(stream)) {
    graphs_.Invalidate(stream);
    return Result::kStreamCaptureUnsupported;
  }
  if (streams_.IsLost(stream)) return MissingStream(stream);
  if (error_ != Result::kSuccess) return error_;
  return HasWork(stream) ? Result::kNotReady : Result::kSuccess;
}

Result FakeGpu::Synchronize(int stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (mistake_ == Mistake::kNoDrain) return error_;
  if (graphs_.IsCaptured(stream)) {
    graphs_.Invalidate(stream);
    return Result::kStreamCaptureUnsupported;
  }
  if (streams_.IsLost(stream)) return MissingStream(stream);
  ++counts_.waiting;
  changed_.wait(lock, [=, this] { return !HasWork(stream); });
  --counts_.waiting;
  return streams_.IsLost(stream) ? Result::kContextIsDestroyed : error_;
}

Result FakeGpu::DestroyStream(int stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return streams_.Destroy(stream) ? error_ : MissingStream(stream);
}

void FakeGpu::WaitForAll() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return pending_.empty(); });
}

void FakeGpu::AwaitRoom(int stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_its = [=](const Work& work) { return work.stream == stream; };
  const auto has_room = [&] {
    return static_cast<size_t>(std::count_if(pending_.begin(), pending_.end(), is_its)) < options_.most_pending;
  };
  if (options_.most_pending < SIZE_MAX) changed_.wait(lock, has_room);
}

bool FakeGpu::NeedOrder(const Work& a, const Work& b) const {
  const auto changed = [](const Work& work) {
    std::vector<MemoryRange> all = work.written;
    all.insert(all.end(), work.marks.begin(), work.marks.end());
    return all;
  };
  return AnyOverlap(changed(a), changed(b)) || AnyOverlap(changed(a), b.read) || AnyOverlap(a.read, changed(b));
}

// What a destination holds from now on is the device's affair, if nothing else uses it. The CPU may use pinned memory
// until the stream has come to the work.
void FakeGpu::Poison(const Work& work) {
  const bool waits = Waits(work);
  for (const MemoryRange& range : work.written) {
    const std::vector<MemoryRange> one{range};
    const bool is_used =
        AnyOverlap(one, work.read) || std::any_of(pending_.begin(), pending_.end(), [&](const Work& w) {
          return AnyOverlap(one, w.read) || AnyOverlap(one, w.written);
        });
    // As may other processes what they reach.
    if (waits && (memory_.DeviceOf(range.begin) < 0 || memory_.IsExported(range.begin))) continue;
    std::byte* const memory = memory_.Access(streams_.DeviceOf(work.stream), range.begin, range.bytes);
    if (!is_used && memory != nullptr) std::memset(memory, kPoison, range.bytes);
  }
}

Result FakeGpu::Submit(Work work) {
  if (error_ != Result::kSuccess) return error_;
  if (!streams_.Has(work.stream)) return MissingStream(work.stream);
  if (graphs_.IsCaptured(work.stream)) return graphs_.Add(std::move(work));
  FakeStreams::Clock oldest;
  for (const Work& other : pending_) oldest.try_emplace(other.stream, other.number);
  streams_.ForgetDone(work.stream, oldest);
  work.after = streams_.ClockOf(work.stream);
  work.number = streams_.Add(work.stream);
  for (const Work& other : pending_) {
    if (IsBefore(other, work) || !NeedOrder(other, work)) continue;
    if (!IsGated(other) && !IsGated(work)) RecordOrder("a missing wait between two streams", other, work);
  }
  Poison(work);
  pending_.push_back(std::move(work));
  changed_.notify_all();
  return Result::kSuccess;
}

Result FakeGpu::Copy(int stream, std::byte* to, const std::byte* from, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++counts_.copies;
  counts_.crossings += memory_.DeviceOf(to) < 0 || memory_.DeviceOf(from) < 0;
  const int device = streams_.DeviceOf(stream);
  return Submit({stream, {{from, bytes}}, {{to, bytes}}, [=, this] {
                   // The memory of any device, as its address tells.
                   const auto reach = [&](const std::byte* memory) {
                     const int own = memory_.DeviceOf(memory);
                     return memory_.Access(own >= 0 ? own : device, memory, bytes);
                   };
                   std::byte* const target = reach(to);
                   const std::byte* const source = reach(from);
                   if (target == nullptr || source == nullptr) return false;
                   std::memmove(target, source, bytes);
                   return true;
                 }});
}

Result FakeGpu::Set(int stream, std::byte* memory, int value, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int device = streams_.DeviceOf(stream);
  return Submit({stream, {}, {{memory, bytes}}, [=, this] {
                   std::byte* const place = memory_.Access(device, memory, bytes);
                   if (place == nullptr) return false;
                   std::memset(place, value, bytes);
                   return true;
                 }});
}

bool FakeGpu::SetWord(int device, uint32_t* word, uint32_t value) {
  std::byte* const place = memory_.Access(device, reinterpret_cast<std::byte*>(word), sizeof(value));
  if (place == nullptr) return false;
  __atomic_store_n(reinterpret_cast<uint32_t*>(place), value, __ATOMIC_RELEASE);
  return true;
}

Result FakeGpu::WriteWord(int stream, uint32_t* word, uint32_t value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int device = streams_.DeviceOf(stream);
  if (mistake_ == Mistake::kNoReset && value == 0) return Result::kSuccess;
  if (mistake_ == Mistake::kNoWait) SetWord(device, word, value);
  Work work{stream, {}, {}, [=, this] { return SetWord(device, word, value); }};
  work.marks.push_back(WordRange(word));
  return Submit(std::move(work));
}

Result FakeGpu::WaitWord(int stream, const uint32_t* word, uint32_t value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mistake_ == Mistake::kNoGate) return Result::kSuccess;
  const int device = streams_.DeviceOf(stream);
  const auto place = [=, this] {
    const auto* const bytes = reinterpret_cast<const std::byte*>(word);
    return reinterpret_cast<const uint32_t*>(memory_.Access(device, bytes, sizeof(value)));
  };
  Work work{stream, {WordRange(word)}, {}, [=] { return place() != nullptr; }};
  work.may_run = [=, this] {
    if (place() == nullptr) return true;
    const uint32_t now = __atomic_load_n(place(), __ATOMIC_ACQUIRE);
    return mistake_ != Mistake::kClosedGate && static_cast<int32_t>(now - value) >= 0;
  };
  return Submit(std::move(work));
}

bool FakeGpu::RunSlice(int device, const std::string& kernel, KernelSlice slice, unsigned blocks, unsigned threads) {
  const size_t bytes = slice.count * TypeBytes(TypeOf(kernel));
  std::vector<const std::byte*> sources;
  if (slice.num_sources > 2) {
    const auto* const list = reinterpret_cast<const std::byte*>(slice.many);
    if (memory_.Access(device, list, slice.num_sources * sizeof(std::byte*)) == nullptr) return false;
  }
  for (int i = 0; i < slice.num_sources; ++i) {
    sources.push_back(memory_.Access(device, SourceOf(slice, i), bytes));
    if (sources.back() == nullptr) return false;
    if (i < 2) slice.src[i] = sources.back();
  }
  slice.many = sources.data();
  for (std::byte*& dst : slice.dst) {
    if (dst == nullptr) continue;
    dst = memory_.Access(device, dst, bytes);
    if (dst == nullptr) return false;
  }
  std::vector<std::byte*> more;
  if (slice.num_more > 0) {
    const auto* const list = reinterpret_cast<const std::byte*>(slice.more);
    if (memory_.Access(device, list, slice.num_more * sizeof(std::byte*)) == nullptr) return false;
  }
  for (int i = 0; i < slice.num_more; ++i) {
    more.push_back(memory_.Access(device, slice.more[i], bytes));
    if (more.back() == nullptr) return false;
  }
  slice.more = more.data();
  // The counter of blocks is 0 between launches.
  const auto* const counter = reinterpret_cast<const uint32_t*>(
      memory_.AccessAtomically(device, reinterpret_cast<const std::byte*>(slice.finished_blocks), sizeof(uint32_t)));
  if (counter == nullptr || *counter != 0) return false;
  uint32_t* const done = std::exchange(slice.done, nullptr);
  return RunSliceOnHost(kernel, slice, blocks, threads) && SetWord(device, done, slice.done_value);
}

bool FakeGpu::HasHostOperand(const KernelSlice& slice) const {
  bool has = false;
  for (int i = 0; i < slice.num_sources; ++i) has |= memory_.DeviceOf(SourceOf(slice, i)) < 0;
  for (const std::byte* dst : slice.dst) has |= dst != nullptr && memory_.DeviceOf(dst) < 0;
  return has;
}

Result FakeGpu::Launch(int stream, const std::string& kernel, const KernelBatch& batch, unsigned slices,
                       unsigned blocks, unsigned threads) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++counts_.launches;
  counts_.slices += slices;
  counts_.blocks = blocks;
  const int device = streams_.DeviceOf(stream);
  Work work{stream, {}, {}, nullptr};
  for (unsigned i = 0; i < slices; ++i) {
    const KernelSlice& slice = batch.slices[i];
    counts_.crossings += HasHostOperand(slice);
    const size_t bytes = slice.count * TypeBytes(TypeOf(kernel));
    Work own{stream, {}, {}, nullptr};
    for (int k = 0; k < slice.num_sources; ++k) own.read.push_back({SourceOf(slice, k), bytes});
    for (const std::byte* dst : slice.dst) {
      if (dst != nullptr) own.written.push_back({dst, bytes});
    }
    for (int k = 0; k < slice.num_more; ++k) own.written.push_back({slice.more[k], bytes});
    if (slice.num_more > 0)
      own.read.push_back({reinterpret_cast<const std::byte*>(slice.more), slice.num_more * sizeof(std::byte*)});
    if (slice.num_sources > 2) {
      own.read.push_back({reinterpret_cast<const std::byte*>(slice.many), slice.num_sources * sizeof(std::byte*)});
    }
    own.marks = {WordRange(slice.done), WordRange(slice.finished_blocks)};
    if (NeedOrder(own, work)) Record("a missing wait between two slices of a launch");
    work.read.insert(work.read.end(), own.read.begin(), own.read.end());
    work.written.insert(work.written.end(), own.written.begin(), own.written.end());
    work.marks.insert(work.marks.end(), own.marks.begin(), own.marks.end());
    if (mistake_ == Mistake::kNoWait) SetWord(device, slice.done, slice.done_value);
  }
  work.run = [=, this] {
    for (unsigned i = 0; i < slices; ++i) {
      if (!RunSlice(device, kernel, batch.slices[i], blocks, threads)) return false;
    }
    return true;
  };
  return Submit(std::move(work));
}

void FakeGpu::MustBeIdle(const MemoryRange& range, const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<MemoryRange> one{range};
  for (const Work& work : pending_) {
    if (AnyOverlap(one, work.read) || AnyOverlap(one, work.written) || AnyOverlap(one, work.marks))
      return Record(what + " while work on it is pending");
  }
}

bool FakeGpu::IsBefore(const Work& other, const Work& work) const {
  if (other.stream == work.stream && other.number == work.number) return false;
  const auto found = work.after.find(other.stream);
  return found != work.after.end() && other.number <= found->second;
}

bool FakeGpu::Waits(const Work& work) const {
  const auto is_before = [&](const Work& other) { return IsBefore(other, work); };
  return std::any_of(pending_.begin(), pending_.end(), is_before) || (work.may_run != nullptr && !work.may_run());
}

bool FakeGpu::IsGated(const Work& work) const {
  const auto is_gate = [&](const Work& other) { return other.may_run != nullptr && IsBefore(other, work); };
  return work.may_run != nullptr || std::any_of(pending_.begin(), pending_.end(), is_gate);
}

FakeGpu::Work FakeGpu::OutsideExports(const Work& work) const {
  const auto without = [this](std::vector<MemoryRange> ranges) {
    std::erase_if(ranges, [this](const MemoryRange& range) { return memory_.IsExported(range.begin); });
    return ranges;
  };
  return {work.stream, without(work.read), without(work.written), nullptr, without(work.marks)};
}

void FakeGpu::RecordOrder(const std::string& what, const Work& a, const Work& b) {
  Record(NeedOrder(OutsideExports(a), OutsideExports(b)) ? what : what + ", in exports");
}

void FakeGpu::CheckOrder(const std::vector<int>& runnable, int chosen) {
  const Work& work = pending_[static_cast<size_t>(chosen)];
  for (const int index : runnable) {
    const Work& other = pending_[static_cast<size_t>(index)];
    if (index != chosen && NeedOrder(other, work))
      RecordOrder("work in two streams at a time that needs an order", other, work);
  }
}

int FakeGpu::Choose() {
  std::vector<int> all;
  std::set<int> streams;  // Each one's oldest work comes first; what is behind it waits for it.
  for (size_t i = 0; i < pending_.size(); ++i) {
    const bool is_oldest = streams.insert(pending_[i].stream).second;
    if (error_ != Result::kSuccess || (is_oldest && !Waits(pending_[i]))) all.push_back(static_cast<int>(i));
  }
  if (all.empty()) return -1;
  const int chosen = all[random_() % all.size()];
  if (error_ == Result::kSuccess) CheckOrder(all, chosen);
  return chosen;
}

void FakeGpu::Record(const std::string& violation) { violations_.push_back(violation); }

std::vector<std::string> FakeGpu::Violations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return violations_;
}

void FakeGpu::AddCounts(FakeCounts* counts) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  counts->launches = counts_.launches;
  counts->slices = counts_.slices;
  counts->blocks = counts_.blocks;
  counts->copies = counts_.copies;
  counts->crossings = counts_.crossings;
  counts->waiting = counts_.waiting;
  counts->streams = streams_.count();
  counts->graphs = graphs_.graphs();
  counts->user_objects = graphs_.objects();
  counts->events = streams_.events();
  counts->pending = static_cast<int>(pending_.size());
  counts->handles = static_cast<int64_t>(memory_.virtual_memory().handles());
  counts->ranges = static_cast<int64_t>(memory_.virtual_memory().ranges());
  counts->pinned_ranges = static_cast<int64_t>(memory_.pinned_ranges());
}

}  // namespace annulus::cuda
