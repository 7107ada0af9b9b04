// What the tests of ranks that meet without a rendezvous share: a store in memory, and ranks that join and sum.
//
// Threads: MemoryStore from any; the functions keep nothing.
#pragma once

#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "tests/collectives/harness/rank_threads.h"
#include "tests/collectives/harness/user_config.h"

namespace annulus {

// Where that run's rank 0 leaves its meeting point.
constexpr char kRun[] = "annulus/rendezvous/run 7/0";

// What a framework's store does, in memory.
class MemoryStore {
 public:
  // What a rank is to use; valid as long as this object.
  annulus_store_t Callbacks() {
    annulus_store_t store{};
    store.struct_bytes = sizeof store;
    store.context = this;
    store.set = [](void* self, const char* key, const void* value, size_t bytes) {
      return static_cast<MemoryStore*>(self)->Set(key, std::string(static_cast<const char*>(value), bytes));
    };
    store.get = [](void* self, const char* key, void* value, size_t capacity, size_t* bytes, int64_t timeout_ms) {
      return static_cast<MemoryStore*>(self)->Get(key, value, capacity, bytes, timeout_ms);
    };
    return store;
  }

  int Set(const std::string& key, const std::string& value) {
    std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    ++sets_;
    changed_.notify_all();
    return fails_;
  }

  // Sets what the next get returns, made from the true value.
  void FalsifyOnce(const std::function<std::string(const std::string&)>& falsify) { falsify_ = falsify; }
  void FailWith(int number) { fails_ = number; }

  std::string Value(const std::string& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? "" : found->second;
  }

  // Waits until so many values have been set in all. False when that took longer than kPatience.
  [[nodiscard]] bool AwaitSets(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(kPatience), [&] { return sets_ >= count; });
  }

  // Waits until somebody waits for a value.
  void AwaitWaiter() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return waiters_ > 0; });
  }

 private:
  int Get(const std::string& key, void* value, size_t capacity, size_t* bytes, int64_t timeout_ms) {
    if (fails_ != 0) return fails_;
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiters_;
    changed_.notify_all();
    const bool there = changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                         [&] { return values_.find(key) != values_.end(); });
    --waiters_;
    if (!there) return 1;
    std::string text = values_[key];
    if (falsify_) text = std::exchange(falsify_, nullptr)(text);
    *bytes = text.size();
    if (text.size() <= capacity) std::copy(text.begin(), text.end(), static_cast<char*>(value));
    return 0;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::function<std::string(const std::string&)> falsify_;
  int sets_ = 0;
  int waiters_ = 0;
  int fails_ = 0;
};

inline UserConfig Config(int rank, int size, const annulus_store_t* store) {
  UserConfig config(0);
  config.rank = rank;
  config.size = size;
  config.store = store;
  config.connect_timeout_ms = kFarTimeoutMs;
  config.Set("run_id", "run 7");
  config.Set("interface_name", "lo");
  return config;
}

// What this thread's latest failure was.
inline ErrorCopy LatestFailure() {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  EXPECT_EQ(annulus_last_error(&error), ANNULUS_OK);
  ErrorCopy copy;
  copy.status = error.status;
  copy.rank = error.rank;
  copy.message = error.message;
  return copy;
}

// Creates a communicator, sums over it and destroys it.
inline void JoinAndSum(const UserConfig& config, int salt = 0) {
  annulus_comm_t* comm = nullptr;
  ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LatestFailure().message;
  const size_t count = 1000;
  Numbers out(count);
  EXPECT_EQ(Sum(comm, Contribution(config.rank, count, salt), &out), ANNULUS_OK);
  EXPECT_EQ(out, SumOfAll(config.size, count, salt));
  EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
}

// The failure of a creation.
inline ErrorCopy Refusal(const UserConfig& config) {
  annulus_comm_t* comm = nullptr;
  EXPECT_NE(annulus_comm_create(&config, &comm), ANNULUS_OK);
  EXPECT_EQ(comm, nullptr);
  return LatestFailure();
}

inline bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace annulus
