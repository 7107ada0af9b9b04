// TwoWayStream: slices that go both ways over a link, each end driven by a thread of its own that sleeps when nothing
// moves. Every byte is checked.
//
// Threads: the one that makes it; meanwhile it may do to the link what happens to links.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/contract/contract_traffic.h"

namespace annulus {

class TwoWayStream {
 public:
  // `there` goes from side 0 to side 1. Nothing takes longer than `patience`.
  TwoWayStream(ContractLink* link, const Plan& there, const Plan& back, Nanoseconds patience)
      : link_(link), begin_(Now()), deadline_(DeadlineAfter(patience)) {
    threads_[0] = std::thread([=, this] { Drive(0, there, back); });
    threads_[1] = std::thread([=, this] { Drive(1, back, there); });
  }
  TwoWayStream(const TwoWayStream&) = delete;
  TwoWayStream& operator=(const TwoWayStream&) = delete;
  ~TwoWayStream() { (void)Join(); }

  bool running() const { return finished_.load() < 2; }
  // Waits for the end. Returns how long it took until both ends were done.
  Nanoseconds Join() {
    for (std::thread& each : threads_) {
      if (each.joinable()) each.join();
    }
    return std::max(finished_at_[0], finished_at_[1]) - begin_;
  }

 private:
  // Drives one end until its talker and its listener are done, and those of the other end.
  void Drive(int side, const Plan& talks, const Plan& listens) {
    SliceTalker talker(&link_->end(side), talks);
    SliceListener listener(&link_->end(side), listens);
    for (bool done = false; !done || running();) {
      bool moved = false;
      const Status status = link_->end(side).Progress(&moved);
      ASSERT_TRUE(status.ok()) << status.ToString();
      moved |= talker.Step();
      moved |= listener.Step();
      ASSERT_FALSE(talker.broken() || listener.broken());
      ASSERT_LT(Now(), deadline_) << "side " << side;
      if (talker.done() && listener.done() && !std::exchange(done, true)) {
        finished_at_[side] = Now();
        ++finished_;
      }
      if (!moved && link_->end(side).Arm()) link_->reactor(side)->WaitUntil(Now() + 20 * kMillisecond);
    }
  }

  ContractLink* const link_;
  const Nanoseconds begin_;
  const Deadline deadline_;
  std::atomic<int> finished_ = 0;
  Nanoseconds finished_at_[2] = {0, 0};
  std::thread threads_[2];
};

}  // namespace annulus
