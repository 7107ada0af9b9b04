// What tests with several threads per rank share: events to wait for, a look at whether another thread sleeps in its
// call, errors as values, and data whose results are easy to tell apart.
//
// Threads: Tally and Sleeper from any; the functions keep nothing.
#pragma once

#include <annulus.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"

namespace annulus {

// Longer than anything here takes under a sanitizer on a busy machine, and shorter than the test's own limit.
constexpr Nanoseconds kPatience = 90 * kSecond;
// The deadline of collectives in these tests, so far away that nothing ends by it.
constexpr int64_t kFarTimeoutMs = 120'000;
// "Well before the deadline".
constexpr Nanoseconds kSoon = 20 * kSecond;

// Counts events.
class Tally {
 public:
  void Add();
  // Waits until `count` events have happened in all. False when that took longer than kPatience.
  [[nodiscard]] bool WaitFor(int count);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// Tells when a thread has gone to sleep in the call that it makes next, as a call does that has to wait for a peer.
class Sleeper {
 public:
  // By the thread itself, immediately before the call.
  void AboutToBlock();
  // By another. False when that took longer than kPatience.
  [[nodiscard]] bool WaitUntilAsleep() const;

 private:
  std::atomic<int> thread_id_{0};
};

// Calls body(0) to body(nranks - 1), each on a thread of its own.
void ForEachRank(int nranks, const std::function<void(int rank)>& body);

// annulus_error_t with strings of its own: the verdict or, while there is none, this thread's latest failure.
struct ErrorCopy {
  annulus_status_t status = ANNULUS_OK;
  int rank = -1;
  int peer = -1;
  uint64_t sequence = 0;
  std::string collective;
  int os_errno = 0;
  std::string message;
  std::string advice;
};
ErrorCopy LastError(const annulus_comm_t* comm);

using Numbers = std::vector<int64_t>;

// What `rank` contributes to an allreduce, different for each `salt`; and the sum over `nranks` ranks.
Numbers Contribution(int rank, size_t count, int salt);
Numbers SumOfAll(int nranks, size_t count, int salt);

// Allreduces of int64 sums, from all of `in` to `out`, which are equally long.
annulus_status_t Sum(annulus_comm_t* comm, const Numbers& in, Numbers* out);
annulus_status_t SumAsync(annulus_comm_t* comm, const Numbers& in, Numbers* out, annulus_request_t** request);

}  // namespace annulus
