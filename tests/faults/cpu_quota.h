// CpuQuota: a share of a core that the kernel's bandwidth control (CFS) gives to processes, by a control group of the
// test's own: of version 1, or of version 2 where its parent has the controller "cpu".
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"

namespace annulus {

class CpuQuota {
 public:
  // Its processes run for `share` in each `period`, all together. Null where this process may make no such group;
  // `why` says so.
  static std::unique_ptr<CpuQuota> Create(Nanoseconds period, Nanoseconds share, std::string* why);
  // Lets all processes go.
  ~CpuQuota();
  CpuQuota(const CpuQuota&) = delete;
  CpuQuota& operator=(const CpuQuota&) = delete;

  // Adds the process, with all its threads.
  void Add(pid_t pid);
  // They go back to where this process is.
  void LetGo();
  // In how many periods the share was not enough.
  int throttled_periods() const;

 private:
  CpuQuota(std::string parent, std::string group) : parent_(std::move(parent)), group_(std::move(group)) {}

  const std::string parent_;
  const std::string group_;
  std::vector<pid_t> taken_;
};

}  // namespace annulus
