// Rank 0 waits until all others have left a key, and then lets each go by another one. A rank that gives up leaves a
// key that says so. All have the number of the rank's attempt, and rank 0 goes on to the next one where a rank has
// given up: so a rank that missed a barrier fits into the next, and what was for one attempt never counts for another.
// Keys are deleted by whoever sees that the other side is past the attempt.
#include "frameworks/torch/monitored_barrier.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace annulus_torch {
namespace {

using Clock = std::chrono::steady_clock;

// Whether the key is in the store by then.
bool Comes(c10d::Store& store, const std::string& key, Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  try {
    store.wait({key}, std::max(left, std::chrono::milliseconds(1)));
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

MonitoredBarrier::MonitoredBarrier(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : store_(std::move(store)), rank_(rank), attempts_(size) {}

void MonitoredBarrier::Pass(std::chrono::milliseconds limit, bool wait_all_ranks) {
  // A connection of its own: other threads may use the store while this one waits.
  const c10::intrusive_ptr<c10d::Store> store = store_->clone();
  if (rank_ == 0) {
    PassOthers(*store, limit, wait_all_ranks);
  } else {
    PassSelf(*store, limit);
  }
}

std::string MonitoredBarrier::Key(const char* what, int rank) const {
  return "annulus/monitored_barrier/" + std::to_string(rank) + "/" + std::to_string(attempts_[rank]) + what;
}

bool MonitoredBarrier::HasGivenUp(c10d::Store& store, int rank) const { return store.check({Key("/gone", rank)}); }

void MonitoredBarrier::Forget(c10d::Store& store, int rank, std::initializer_list<const char*> keys) const {
  for (const char* const what : keys) {
    try {
      store.deleteKey(Key(what, rank));
    } catch (const std::exception&) {  // Not every store can.
    }
  }
}

bool MonitoredBarrier::Arrives(c10d::Store& store, int rank, Clock::time_point deadline) {
  while (Comes(store, Key("/here", rank), deadline)) {
    if (!HasGivenUp(store, rank)) return true;
    Forget(store, rank, {"/here", "/gone"});
    ++attempts_[rank];
  }
  return false;
}

void MonitoredBarrier::PassOthers(c10d::Store& store, std::chrono::milliseconds limit, bool wait_all_ranks) {
  const Clock::time_point deadline = Clock::now() + limit;
  const std::string why = " failed to pass monitoredBarrier in " + std::to_string(limit.count()) + " ms";
  const int size = static_cast<int>(attempts_.size());
  std::string missing;
  for (int rank = 1; rank < size; ++rank) {
    TORCH_CHECK(wait_all_ranks || Clock::now() < deadline, "[Rank 0]: Rank 0 timed out in monitoredBarrier after ",
                limit.count(), " ms; ranks before ", rank, " came in time");
    if (Arrives(store, rank, deadline)) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    TORCH_CHECK(wait_all_ranks, "[Rank 0]: Rank ", missing, why);
  }
  TORCH_CHECK(missing.empty(), "[Rank 0]: Ranks ", missing, why);
  // Those that came first may have given up while this rank waited for others.
  for (int rank = 1; rank < size; ++rank) {
    if (!HasGivenUp(store, rank)) continue;
    TORCH_CHECK(Arrives(store, rank, deadline), "[Rank 0]: Rank ", rank, why);
    rank = 0;  // Again from the first one.
  }
  for (int rank = 1; rank < size; ++rank) {
    store.set(Key("/go", rank), std::string("1"));
    // If it gives up just now, one of the two sees the other's key.
    if (HasGivenUp(store, rank)) Forget(store, rank, {"/here", "/go", "/gone"});
    ++attempts_[rank];
  }
}

void MonitoredBarrier::PassSelf(c10d::Store& store, std::chrono::milliseconds limit) {
  store.set(Key("/here", rank_), std::string("1"));
  const bool goes = Comes(store, Key("/go", rank_), Clock::now() + limit);
  if (goes) {
    Forget(store, rank_, {"/here", "/go"});
  } else {
    store.set(Key("/gone", rank_), std::string("1"));
    if (store.check({Key("/go", rank_)})) Forget(store, rank_, {"/here", "/go", "/gone"});
  }
  ++attempts_[rank_];
  TORCH_CHECK(goes, "[Rank ", rank_, "]: Rank ", rank_,
              " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0: it "
              "let no rank go on within ",
              limit.count(), " ms. Look at rank 0's output, which names the ranks that were missing");
}

}  // namespace annulus_torch
