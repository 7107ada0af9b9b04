// Retries: when something that has failed is tried again: not the next times that it is wanted, then once, and not for
// twice as many after each further failure, up to a bound. So what fails for a moment comes back soon, and what fails
// for good costs little.
//
// Threads: one at a time.
#pragma once

#include <algorithm>

namespace annulus {

class Retries {
 public:
  static constexpr int kFirstPause = 8;  // In times that it is wanted.
  static constexpr int kLongestPause = 4096;

  // To be asked each time that it is wanted.
  bool MayTry() {
    if (left_ == 0) return true;
    --left_;
    return false;
  }
  void Failed() {
    left_ = pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
  }
  void Succeeded() { *this = Retries(); }

 private:
  int left_ = 0;
  int pause_ = kFirstPause;
};

}  // namespace annulus
