// RecentCalls: the latest few small collectives of an engine, each with its plan, its work and a runner of its own, so
// that it can be repeated after others. Programs that take some small calls in turn, as a solver takes its sums, plan
// each of them once.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/algorithms/runner.h"
#include "collectives/algorithms/table.h"
#include "collectives/engine/call_parts.h"

namespace annulus {

struct RecentCall {
  explicit RecentCall(int nranks) : parts(nranks) {}

  Repeatable* repeatable = nullptr;  // Null: the call cannot be repeated.
  uint64_t plan = 0;                 // Another number for each call that is planned; 0: there was none here.
  Work work;
  ScheduleParams params;
  CallParts parts;                  // If its kind has any.
  std::unique_ptr<Runner> one_hop;  // Small collectives are repeated by this runner alone. Null: the job has none.
};

class RecentCalls {
 public:
  // `links` outlives it, as in AlgorithmRow::make.
  RecentCalls(int rank, const AlgorithmJob& job, const Links* links, SlotMemory* staging) {
    const AlgorithmRow& row = RowOf(Algorithm::kOneHop);
    calls_.reserve(NumCalls(job));
    for (size_t i = 0; i < NumCalls(job); ++i) {
      calls_.emplace_back(job.nranks());
      calls_.back().one_hop = row.make(rank, job, links, staging);
    }
    latest_ = calls_.data();
  }

  // Bytes that it holds beside itself.
  static size_t MemoryBytes(const AlgorithmJob& job) {
    const size_t each = CallParts::MemoryBytes(job.nranks()) + RowOf(Algorithm::kOneHop).memory_bytes(job);
    return NumCalls(job) * (sizeof(RecentCall) + each);
  }

  RecentCall& latest() { return *latest_; }
  const RecentCall& latest() const { return *latest_; }

  // The place for a call that is planned, which is the latest one from now on. What is there already is the oldest one,
  // or one that cannot be repeated.
  RecentCall& Begin() {
    latest_ = &calls_[next_];
    latest_->repeatable = nullptr;
    latest_->plan = ++plans_;
    return *latest_;
  }
  // The latest call can be repeated by its own runner.
  void Keep() {
    latest_->repeatable = latest_->one_hop->repeatable();
    if (latest_->repeatable != nullptr) next_ = After(next_);
  }
  // Makes the first call behind the latest one that `is_wanted` the latest one. Calls in turn lie in that order.
  // Returns whether there is one that can be repeated.
  template <class IsWanted>
  [[gnu::noinline]] bool Recall(IsWanted is_wanted) {
    const auto latest = static_cast<size_t>(latest_ - calls_.data());
    for (size_t i = After(latest); i != latest; i = After(i)) {
      if (calls_[i].repeatable == nullptr || !is_wanted(calls_[i])) continue;
      latest_ = &calls_[i];
      return true;
    }
    return false;
  }
  // None may be repeated any more.
  void Forget() {
    for (RecentCall& call : calls_) {
      call.repeatable = nullptr;
      call.plan = ++plans_;
    }
  }

 private:
  // Where there is nothing to repeat, one place for the call that is under way.
  static constexpr size_t kMostCalls = 8;
  static size_t NumCalls(const AlgorithmJob& job) {
    return RowOf(Algorithm::kOneHop).memory_bytes(job) > 0 ? kMostCalls : 1;
  }
  size_t After(size_t i) const { return i + 1 < calls_.size() ? i + 1 : 0; }

  std::vector<RecentCall> calls_;  // Its size does not change: work is referred to.
  RecentCall* latest_ = nullptr;
  size_t next_ = 0;
  uint64_t plans_ = 0;
};

}  // namespace annulus
