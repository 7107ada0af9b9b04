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
  // The clock outlives the timer.
  explicit SimTimer(SimClock* clock) : clock_(clock) {}
  void Set(Nanoseconds wait, std::function<void()> run) override {
    latest_ = std::make_shared<bool>();
    clock_->At(clock_->now() + wait, [latest = std::weak_ptr<bool>(latest_), run = std::move(run)] {
      if (!latest.expired()) run();
    });
  }
  void Cancel() override { latest_ = nullptr; }

 private:
  SimClock* const clock_;
  std::shared_ptr<bool> latest_;
};

}  // namespace annulus
