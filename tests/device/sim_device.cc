// The simulated device's queues: conflicts are found at Submit, work is done late and in random order.
#include "tests/device/sim_device.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/device/sim_memory.h"

namespace annulus {
namespace {

constexpr int kPoison = 0xdb;
// Share of polls that finish an operation, in percent, when polls drive the device.
constexpr int kDonePerPollPercent = 40;

struct Range {
  const std::byte* begin;
  size_t bytes;
  bool Overlaps(const Range& other) const {
    return bytes > 0 && other.bytes > 0 && begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

struct Ranges {
  std::vector<Range> read;
  std::vector<Range> written;
};

Ranges RangesOf(const SliceOp& op) {
  const size_t bytes = op.count * TypeBytes(op.type);
  Ranges ranges;
  const std::byte* const* sources = op.num_sources > 2 ? op.src : op.inline_src;
  for (int i = 0; i < op.num_sources; ++i) ranges.read.push_back({sources[i], bytes});
  for (const std::byte* dst : op.dst) {
    if (dst != nullptr) ranges.written.push_back({dst, bytes});
  }
  return ranges;
}

bool AnyOverlap(const std::vector<Range>& left, const std::vector<Range>& right) {
  for (const Range& a : left) {
    for (const Range& b : right) {
      if (a.Overlaps(b)) return true;
    }
  }
  return false;
}

// Whether the result depends on which of the two is done first.
bool NeedOrder(const Ranges& a, const Ranges& b) {
  return AnyOverlap(a.written, b.written) || AnyOverlap(a.written, b.read) || AnyOverlap(a.read, b.written);
}

}  // namespace

// What all queues share: the memory, the pending operations, and who does them. One lock guards it all.
class SimDevice::Scheduler final : public std::enable_shared_from_this<Scheduler> {
 public:
  using Ticket = DomainQueue::Ticket;

  explicit Scheduler(const SimDeviceOptions& options) : options_(options), chance_(options.seed) {
    if (options_.has_thread) thread_ = std::thread([this] { WorkInThread(); });
  }

  // No operation begins any more.
  void Stop() {
    {
      const Lock lock(mutex_);
      stops_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  Status Submit(int queue_number, int wake_fd, const SliceOp& op, Ticket* ticket) {
    const Lock lock(mutex_);
    if (CountOf(queue_number) == options_.queue_length) return Status::WouldBlock();
    Work work{next_ticket_, queue_number, wake_fd, op, RangesOf(op), false};
    for (const Work& other : pending_) {
      if (!NeedOrder(work.ranges, other.ranges)) continue;
      std::fprintf(stderr, "annulus: a missing wait: operation %llu needs the result or the memory of %llu\n",
                   static_cast<unsigned long long>(work.ticket), static_cast<unsigned long long>(other.ticket));
      std::abort();
    }
    CountUnregistered(work.ranges);
    Poison(work.ranges);
    *ticket = next_ticket_++;
    pending_.push_back(std::move(work));
    if (options_.clock != nullptr) ScheduleOne();
    changed_.notify_all();
    return Status();
  }

  Status Poll(Ticket ticket, bool* done) {
    const Lock lock(mutex_);
    ANNULUS_CHECK(ticket != DomainQueue::kCompleted && ticket < next_ticket_);
    ++polls_;
    *done = std::none_of(pending_.begin(), pending_.end(), [=](const Work& work) { return work.ticket == ticket; });
    // After the answer, so that an operation is never seen done by the poll that does it.
    const bool by_polls = options_.clock == nullptr && !options_.has_thread;
    if (by_polls && !pending_.empty() && chance_.Chance(kDonePerPollPercent)) FinishOne();
    return Status();
  }

  // Drops what the queue has not begun, and waits for the rest.
  void Drain(int queue_number) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::erase_if(pending_, [=](const Work& work) { return work.queue_number == queue_number && !work.runs; });
    changed_.wait(lock, [=, this] { return CountOf(queue_number) == 0; });
  }

  int NewQueueNumber() {
    const Lock lock(mutex_);
    return ++queues_;
  }

  // Calls use(memory) with the lock held.
  template <class Use>
  auto WithMemory(Use use) {
    const Lock lock(mutex_);
    return use(&memory_);
  }

  // The address behind `device`, which nothing pending may use.
  void Access(const std::byte* device, size_t bytes, const std::function<void(std::byte* alias)>& copy) {
    const Lock lock(mutex_);
    const Ranges access{{}, {{device, bytes}}};
    const bool touched =
        std::any_of(pending_.begin(), pending_.end(), [&](const Work& work) { return NeedOrder(access, work.ranges); });
    ANNULUS_CHECK(memory_.Owns(device) && !touched);
    if (bytes > 0) copy(memory_.Translate(device, bytes));
  }

  void Register(const std::byte* slots, size_t bytes) {
    const Lock lock(mutex_);
    ANNULUS_CHECK(slots_.emplace(slots, slots + bytes).second);
  }
  void Unregister(const std::byte* slots) {
    const Lock lock(mutex_);
    const auto used = [=, this](const Work& work) {
      const std::vector<Range> range{{slots, static_cast<size_t>(slots_[slots] - slots)}};
      return AnyOverlap(work.ranges.read, range) || AnyOverlap(work.ranges.written, range);
    };
    ANNULUS_CHECK(std::none_of(pending_.begin(), pending_.end(), used));
    ANNULUS_CHECK(slots_.erase(slots) == 1);
  }

  int pending() const {
    const Lock lock(mutex_);
    return static_cast<int>(pending_.size());
  }
  int64_t overtakings() const { return Get(&Scheduler::overtakings_); }
  int64_t unregistered() const { return Get(&Scheduler::unregistered_); }
  int64_t polls() const { return Get(&Scheduler::polls_); }
  size_t registrations() const {
    const Lock lock(mutex_);
    return slots_.size();
  }

 private:
  using Lock = std::lock_guard<std::mutex>;
  struct Work {
    Ticket ticket;
    int queue_number;
    int wake_fd;
    SliceOp op;
    Ranges ranges;
    bool runs;  // The thread is at it.
  };

  int64_t Get(int64_t Scheduler::*number) const {
    const Lock lock(mutex_);
    return this->*number;
  }

  // From here on, all with the lock held.
  int CountOf(int queue_number) const {
    const auto is_own = [=](const Work& work) { return work.queue_number == queue_number; };
    return static_cast<int>(std::count_if(pending_.begin(), pending_.end(), is_own));
  }

  bool IsRegistered(const Range& range) const {
    const auto after = slots_.upper_bound(range.begin);
    return after != slots_.begin() && range.begin + range.bytes <= std::prev(after)->second;
  }

  void CountUnregistered(const Ranges& ranges) {
    const auto count = [this](const std::vector<Range>& some) {
      for (const Range& range : some) {
        if (range.bytes > 0 && !memory_.Owns(range.begin) && !IsRegistered(range)) ++unregistered_;
      }
    };
    count(ranges.read);
    count(ranges.written);
  }

  // From here on the destinations are the device's, and hold nothing that anybody may rely on.
  void Poison(const Ranges& ranges) {
    for (const Range& dst : ranges.written) {
      if (AnyOverlap({dst}, ranges.read)) continue;
      std::memset(memory_.Translate(dst.begin, dst.bytes), kPoison, dst.bytes);
    }
  }

  // One event per operation; which operation it finishes is drawn then.
  void ScheduleOne() {
    SimClock& clock = *options_.clock;
    const Nanoseconds time = clock.Between(options_.min_time, options_.max_time);
    clock.At(clock.now() + time, [self = weak_from_this()] {
      const auto scheduler = self.lock();
      if (scheduler == nullptr) return;
      const Lock lock(scheduler->mutex_);
      if (!scheduler->pending_.empty()) scheduler->FinishOne();  // Otherwise its operation was dropped.
    });
  }

  size_t Choose() {
    const size_t index = static_cast<size_t>(chance_.Between(0, static_cast<int64_t>(pending_.size()) - 1));
    if (index > 0) ++overtakings_;
    return index;
  }

  void FinishOne() {
    const size_t index = Choose();
    RunOnHost(TranslatedOf(pending_[index].op).op);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void WorkInThread() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stops_ || !pending_.empty(); });
      const std::chrono::nanoseconds time(chance_.Between(options_.min_time, options_.max_time));
      changed_.wait_for(lock, time, [this] { return stops_; });
      if (stops_) return;
      if (pending_.empty()) continue;
      const size_t index = Choose();
      const Ticket ticket = pending_[index].ticket;
      const int wake_fd = pending_[index].wake_fd;
      pending_[index].runs = true;
      const Translated translated = TranslatedOf(pending_[index].op);
      lock.unlock();
      RunOnHost(translated.op);
      lock.lock();
      std::erase_if(pending_, [=](const Work& work) { return work.ticket == ticket; });
      (void)eventfd_write(wake_fd, 1);
      changed_.notify_all();
    }
  }

  // An operation as the device does it, on the aliases.
  struct Translated {
    SliceOp op;
    std::vector<const std::byte*> sources;
  };
  Translated TranslatedOf(const SliceOp& given) const {
    Translated result{given, {}};
    SliceOp& op = result.op;
    const size_t bytes = op.count * TypeBytes(op.type);
    for (int i = 0; i < op.num_sources; ++i) {
      result.sources.push_back(memory_.Translate(op.num_sources > 2 ? op.src[i] : op.inline_src[i], bytes));
    }
    for (int i = 0; i < op.num_sources && i < 2; ++i) op.inline_src[i] = result.sources[i];
    op.src = result.sources.data();
    for (std::byte*& dst : op.dst) {
      if (dst != nullptr) dst = memory_.Translate(dst, bytes);
    }
    return result;
  }

  const SimDeviceOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  SimClock chance_;  // Its own, so that links do not change the device's order.
  SimMemory memory_;
  std::map<const std::byte*, const std::byte*> slots_;  // Registered ranges: begin and end.
  std::vector<Work> pending_;                           // Oldest first.
  Ticket next_ticket_ = DomainQueue::kCompleted + 1;
  int queues_ = 0;
  int64_t overtakings_ = 0;
  int64_t unregistered_ = 0;
  int64_t polls_ = 0;
  bool stops_ = false;
  std::thread thread_;
};

class SimDevice::Queue final : public DomainQueue {
 public:
  Queue(std::shared_ptr<Scheduler> scheduler, bool has_descriptor)
      : DomainQueue(MemoryKind::kDevice),
        scheduler_(std::move(scheduler)),
        number_(scheduler_->NewQueueNumber()),
        wake_fd_(has_descriptor ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1) {
    ANNULUS_CHECK(has_descriptor == (wake_fd_ >= 0));
  }
  ~Queue() override {
    Drain();
    if (wake_fd_ >= 0) close(wake_fd_);
  }

  int wake_fd() const override { return wake_fd_; }
  void Drain() override { scheduler_->Drain(number_); }

 private:
  Status SubmitAsync(const SliceOp& op, Ticket* ticket) override {
    return scheduler_->Submit(number_, wake_fd_, op, ticket);
  }
  Status PollAsync(Ticket ticket, bool* done) override { return scheduler_->Poll(ticket, done); }

  const std::shared_ptr<Scheduler> scheduler_;
  const int number_;
  const int wake_fd_;
};

SimDevice::SimDevice(const SimDeviceOptions& options)
    : MemoryDomain(MemoryKind::kDevice),
      scheduler_(std::make_shared<Scheduler>(options)),
      has_thread_(options.has_thread) {}

SimDevice::~SimDevice() { scheduler_->Stop(); }

bool SimDevice::Owns(const void* pointer) const {
  return scheduler_->WithMemory(
      [=](const SimMemory* memory) { return memory->Owns(static_cast<const std::byte*>(pointer)); });
}

Status SimDevice::OpenQueue(ReduceOn, std::unique_ptr<DomainQueue>* queue) {
  *queue = std::make_unique<Queue>(scheduler_, has_thread_);
  return Status();
}

std::byte* SimDevice::AllocateSlots(size_t bytes) {
  std::byte* const slots = AllocateHostSlots(bytes);
  if (slots != nullptr) scheduler_->Register(slots, bytes);
  return slots;
}

void SimDevice::FreeSlots(std::byte* slots, size_t) {
  scheduler_->Unregister(slots);
  FreeHostSlots(slots);
}

Status SimDevice::RegisterSlots(std::byte* slots, size_t bytes) {
  scheduler_->Register(slots, bytes);
  return Status();
}

void SimDevice::UnregisterSlots(std::byte* slots, size_t) { scheduler_->Unregister(slots); }

std::byte* SimDevice::Allocate(size_t bytes) {
  return scheduler_->WithMemory([=](SimMemory* memory) { return memory->Allocate(bytes); });
}

void SimDevice::Free(std::byte* device) {
  scheduler_->Access(device, 1, [](std::byte*) {});
  scheduler_->WithMemory([=](SimMemory* memory) { memory->Free(device); });
}

void SimDevice::Write(std::byte* device, const void* host, size_t bytes) {
  scheduler_->Access(device, bytes, [=](std::byte* alias) { std::memcpy(alias, host, bytes); });
}

void SimDevice::Read(void* host, const std::byte* device, size_t bytes) const {
  scheduler_->Access(device, bytes, [=](const std::byte* alias) { std::memcpy(host, alias, bytes); });
}

int SimDevice::pending() const { return scheduler_->pending(); }
int64_t SimDevice::overtakings() const { return scheduler_->overtakings(); }
int64_t SimDevice::unregistered() const { return scheduler_->unregistered(); }
int64_t SimDevice::polls() const { return scheduler_->polls(); }
size_t SimDevice::registrations() const { return scheduler_->registrations(); }

}  // namespace annulus
