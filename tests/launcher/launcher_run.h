// LauncherRun: one run of the real annulus-run, with its output captured.
//
// The test process is made a subreaper: whatever the launcher leaves behind becomes its child, and ExpectNoOrphans
// finds it.
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"

namespace annulus {

class LauncherRun {
 public:
  struct Setup {
    std::vector<std::string> arguments{};
    std::vector<std::string> variables{};  // "NAME=value", over the test's own.
    std::string input{};                   // What standard input holds.
    std::string output{};                  // The file that standard output is; "": a pipe to the test.
    bool terminal = false;                 // Standard error is one.
    bool own_group = false;                // A process group of its own, as a shell gives each pipeline.
    Nanoseconds run_time = 150 * kSecond;  // After which the test fails; ranks that wait for each other may be slow.
  };

  explicit LauncherRun(const Setup& setup);
  LauncherRun(const LauncherRun&) = delete;
  LauncherRun& operator=(const LauncherRun&) = delete;
  ~LauncherRun();

  pid_t pid() const { return pid_; }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

  // Reads until standard output holds `count` whole lines; fails the test at the deadline.
  void AwaitLines(int count);
  // Reads until standard error holds `text`, from byte `begin` on; fails the test at the deadline.
  void AwaitError(const std::string& text, size_t begin = 0);
  void CloseOut();
  // Waits, without reading, until what waits to be read has not grown for a while: the launcher's reader pauses.
  void AwaitStandstill();

  // Reads to the end and returns AwaitExit().
  int Finish();
  // Returns the exit status, 128 + signal for a signal, -1 when the deadline came first. Reads nothing.
  int AwaitExit();

  // Standard output's lines that start with "[rank] ", without it.
  std::vector<std::string> LinesOf(int rank) const;

 private:
  bool ReadSome();

  const Deadline deadline_;
  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
  std::string err_;
};

// Runs `command` by sh on `nranks` ranks.
LauncherRun::Setup ShellRanks(int nranks, const std::string& command);

// Fails the test unless every process that the test started, directly or not, is gone within seconds.
void ExpectNoOrphans();

}  // namespace annulus
