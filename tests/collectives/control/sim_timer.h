// SimTimer: a control thread's timer in virtual time.
//
// Threads: one.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "collectives/control/control_net.h"
#include "transport/sim/sim_clock.h"

namespace annulus {

class SimTimer : public ControlTimer {
 public:
  // Runs what is due, now or later.
  using Deliver = std::function<void(const std::function<void()>& run)>;

  // The clock outlives the timer.
  explicit SimTimer(
      SimClock* clock, Deliver deliver = [](const std::function<void()>& run) { run(); })
      : clock_(clock), deliver_(std::move(deliver)) {}
  void Set(Nanoseconds wait, std::function<void()> run) override {
    latest_ = std::make_shared<bool>();
    const auto ring = [latest = std::weak_ptr<bool>(latest_), run = std::move(run)] {
      if (!latest.expired()) run();
    };
    clock_->At(clock_->now() + wait, [deliver = deliver_, ring] { deliver(ring); });
  }
  void Cancel() override { latest_ = nullptr; }

 private:
  SimClock* const clock_;
  const Deliver deliver_;
  std::shared_ptr<bool> latest_;
};

}  // namespace annulus
