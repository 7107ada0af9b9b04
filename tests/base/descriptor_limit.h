// DescriptorLimit: while it exists, this process has another limit of open files (ulimit -n), so that tests see what is
// done without descriptors. The sanitizer of undefined behaviour needs some to look at memory.
//
// Threads: the limit is the process's; one object at a time.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace annulus {

class DescriptorLimit {
 public:
  // Descriptors from this number on cannot be opened.
  explicit DescriptorLimit(rlim_t first_refused) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit changed = {first_refused, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &changed), 0);
  }
  ~DescriptorLimit() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  // The number of the next descriptor that is opened.
  static rlim_t Next() {
    const int next = ::dup(STDIN_FILENO);
    EXPECT_GE(next, 0);
    ::close(next);
    return static_cast<rlim_t>(next);
  }
  // The highest limit that this process may set.
  static rlim_t Most() {
    rlimit limit{};
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit.rlim_max;
  }

 private:
  rlimit before_{};
};

}  // namespace annulus
