#include "tests/collectives/harness/rank_threads.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

namespace annulus {

void Tally::Add() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++count_;
  changed_.notify_all();
}

bool Tally::WaitFor(int count) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::nanoseconds(kPatience), [&] { return count_ >= count; });
}

void Sleeper::AboutToBlock() { thread_id_.store(gettid()); }

bool Sleeper::WaitUntilAsleep() const {
  // A thread may doze for microseconds over a lock on its way into the call; each look takes longer than that.
  constexpr int kLooks = 50;
  const Deadline deadline = DeadlineAfter(kPatience);
  for (int looks = 0; looks < kLooks;) {
    if (Now() > deadline) return false;
    const int id = thread_id_.load();
    std::ifstream file("/proc/self/task/" + std::to_string(id) + "/stat");
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    // "ID (NAME) STATE ...", and a name may hold parentheses.
    const size_t name_end = stat.rfind(") ");
    const bool asleep = id != 0 && name_end != std::string::npos && stat[name_end + 2] == 'S';
    looks = asleep ? looks + 1 : 0;
    sched_yield();
  }
  return true;
}

void ForEachRank(int nranks, const std::function<void(int rank)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < nranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
}

ErrorCopy LastError(const annulus_comm_t* comm) {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  EXPECT_EQ(annulus_comm_verdict(comm, &error), ANNULUS_OK);
  if (error.status == ANNULUS_OK) {
    error.struct_bytes = sizeof error;
    EXPECT_EQ(annulus_last_error(&error), ANNULUS_OK);
  }
  return {error.status,     error.rank,       error.peer,    error.sequence,
          error.collective, error.cause_code, error.message, error.advice};
}

Numbers Contribution(int rank, size_t count, int salt) {
  Numbers numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = 1'000'000 * (rank + 1) + 1'000 * salt + static_cast<int64_t>(i);
  return numbers;
}

Numbers SumOfAll(int nranks, size_t count, int salt) {
  int64_t first = 0;
  for (int rank = 0; rank < nranks; ++rank) first += Contribution(rank, 1, salt)[0];
  Numbers sum(count);
  for (size_t i = 0; i < count; ++i) sum[i] = first + nranks * static_cast<int64_t>(i);
  return sum;
}

annulus_status_t Sum(annulus_comm_t* comm, const Numbers& in, Numbers* out) {
  return annulus_allreduce(comm, in.data(), out->data(), in.size(), ANNULUS_INT64, ANNULUS_SUM);
}

annulus_status_t SumAsync(annulus_comm_t* comm, const Numbers& in, Numbers* out, annulus_request_t** request) {
  return annulus_allreduce_async(comm, in.data(), out->data(), in.size(), ANNULUS_INT64, ANNULUS_SUM, request);
}

}  // namespace annulus
