// The simulated device's queue: conflicts are found at Submit, work is done late and in random order.
#include "tests/device/sim_device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/device/sim_memory.h"

namespace annulus {
namespace {

constexpr int kPoison = 0xdb;
// Of 100 polls, how many finish an operation when polls drive the device.
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

class SimDevice::Scheduler final : public Device::Queue, public std::enable_shared_from_this<Scheduler> {
 public:
  explicit Scheduler(const SimDeviceOptions& options) : options_(options), chance_(options.seed) {}

  Status SubmitAsync(const SliceOp& op, Ticket* ticket) override {
    if (pending() == options_.queue_length) return Status::WouldBlock();
    Work work{next_ticket_, op, RangesOf(op)};
    for (const Work& other : pending_) {
      if (!NeedOrder(work.ranges, other.ranges)) continue;
      std::fprintf(stderr, "annulus: a missing wait: operation %llu needs the result or the memory of %llu\n",
                   static_cast<unsigned long long>(work.ticket), static_cast<unsigned long long>(other.ticket));
      std::abort();
    }
    Poison(work.ranges);
    *ticket = next_ticket_++;
    pending_.push_back(std::move(work));
    if (options_.clock != nullptr) ScheduleOne();
    return Status();
  }

  Status PollAsync(Ticket ticket, bool* done) override {
    ANNULUS_CHECK(ticket != kCompleted && ticket < next_ticket_);
    *done = true;
    for (const Work& work : pending_) {
      if (work.ticket == ticket) *done = false;
    }
    // After the answer, so that an operation is never seen done by the poll that does it.
    if (options_.clock == nullptr && !pending_.empty() && chance_.Chance(kDonePerPollPercent)) FinishOne();
    return Status();
  }

  SimMemory& memory() { return memory_; }
  int pending() const { return static_cast<int>(pending_.size()); }
  int64_t overtakings() const { return overtakings_; }

  bool Touched(const std::byte* address, size_t bytes) const {
    const Ranges access{{}, {{address, bytes}}};
    for (const Work& work : pending_) {
      if (NeedOrder(access, work.ranges)) return true;
    }
    return false;
  }

 private:
  struct Work {
    Ticket ticket;
    SliceOp op;
    Ranges ranges;
  };

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
      if (auto scheduler = self.lock()) scheduler->FinishOne();
    });
  }

  void FinishOne() {
    const size_t index = static_cast<size_t>(chance_.Between(0, pending() - 1));
    if (index > 0) ++overtakings_;
    Run(pending_[index].op);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void Run(SliceOp op) {
    const size_t bytes = op.count * TypeBytes(op.type);
    std::vector<const std::byte*> sources;
    for (int i = 0; i < op.num_sources; ++i) {
      sources.push_back(memory_.Translate(op.num_sources > 2 ? op.src[i] : op.inline_src[i], bytes));
    }
    for (int i = 0; i < op.num_sources && i < 2; ++i) op.inline_src[i] = sources[i];
    op.src = sources.data();
    for (std::byte*& dst : op.dst) {
      if (dst != nullptr) dst = memory_.Translate(dst, bytes);
    }
    RunOnHost(op);
  }

  const SimDeviceOptions options_;
  SimClock chance_;  // Its own, so that links do not change the device's order.
  SimMemory memory_;
  std::vector<Work> pending_;  // Oldest first.
  Ticket next_ticket_ = kCompleted + 1;
  int64_t overtakings_ = 0;
};

SimDevice::SimDevice(const SimDeviceOptions& options) : SimDevice(std::make_shared<Scheduler>(options)) {}

SimDevice::SimDevice(std::shared_ptr<Scheduler> scheduler)
    : Device(scheduler.get()), scheduler_(std::move(scheduler)) {}

SimDevice::~SimDevice() = default;

std::byte* SimDevice::Allocate(size_t bytes) { return scheduler_->memory().Allocate(bytes); }

void SimDevice::Write(std::byte* device, const void* host, size_t bytes) {
  ANNULUS_CHECK(scheduler_->memory().Owns(device) && !scheduler_->Touched(device, bytes));
  if (bytes > 0) std::memcpy(scheduler_->memory().Translate(device, bytes), host, bytes);
}

void SimDevice::Read(void* host, const std::byte* device, size_t bytes) const {
  ANNULUS_CHECK(scheduler_->memory().Owns(device) && !scheduler_->Touched(device, bytes));
  if (bytes > 0) std::memcpy(host, scheduler_->memory().Translate(device, bytes), bytes);
}

int SimDevice::pending() const { return scheduler_->pending(); }
int64_t SimDevice::overtakings() const { return scheduler_->overtakings(); }

}  // namespace annulus
