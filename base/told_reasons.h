// ToldReasons: what was logged already, so that a reason which comes back with each call is logged once.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <set>
#include <string>

namespace annulus {

class ToldReasons {
 public:
  // Whether it was not told yet, and is to be told. False for all beyond the first kMost.
  bool IsNew(const std::string& reason) { return told_.size() < kMost && told_.insert(reason).second; }

 private:
  static constexpr size_t kMost = 16;

  std::set<std::string> told_;
};

}  // namespace annulus
