// LookPauses: how long the progress thread waits between two looks at a queue that others drive.
//
// Work that is left alone waits for up to two pauses, and for what a sleep takes longer than it should. A look takes 3
// us or so, on a virtual machine 10, mostly for the kernel's timer and switches, and may take the processor from a
// thread that drives: looks every 125 us made one in eight asynchronous ping-pongs of 64 KiB take twice as long. So
// there are fewer of them where nothing was left alone for long.
#pragma once

#include <algorithm>
#include <chrono>

namespace annulus {

// From when something was left alone until something is so again.
class LookPauses {
 public:
  using Time = std::chrono::microseconds;

  static constexpr Time kAgain{50};     // Something is queued that nobody drives.
  static constexpr Time kEvery{200};    // Up to this otherwise; each pause is twice the last one.
  static constexpr Time kRarely{1000};  // Where none was left alone for long: a 16th of that time, up to this.
  static constexpr int kCalmPerPause = 16;

  // The next pause. `is_free`: something is queued that nobody drives. If it was so after a short pause too, or nothing
  // was left alone for long, it is something else each time: who queues it comes back. `is_active`: something was
  // queued or driven in the last pause; else whoever queues something now may have other habits.
  Time Next(bool is_free, bool is_active) {
    if (!is_active) calm_ = Time(0);
    const Time longest = std::clamp(calm_ / kCalmPerPause, kEvery, kRarely);
    if (is_free && longest == kEvery) {
      pause_ = pause_ == kAgain ? kEvery : kAgain;
    } else {
      pause_ = std::min(2 * pause_, longest);
    }
    calm_ += pause_;  // Counts if it is active.
    return pause_;
  }

 private:
  Time pause_ = kAgain;
  Time calm_{0};  // Pauses in a row in which something happened, and the next one.
};

}  // namespace annulus
