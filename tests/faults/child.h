// Child: a program that a test starts, listens to, signals, and never leaves behind.
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"

namespace annulus {

class Child {
 public:
  using Environment = std::map<std::string, std::string>;

  // Starts `program`, a path, with this process's environment less all ANNULUS_ variables, and `environment` on top.
  Child(const std::string& program, const std::vector<std::string>& arguments, const Environment& environment);
  // Kills what still runs.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal);
  // Ends the child's standard input, which is empty: what tells some programs to end.
  void CloseInput();

  // Both standard output and standard error, as far as read.
  const std::string& output() const { return output_; }
  bool HasLine(const std::string& line) const;
  // What follows `word` and a space in the first whole line that begins so; "" when none does.
  std::string After(const std::string& word) const;
  // How many whole lines contain both texts.
  int CountLines(const std::string& text, const std::string& other = "") const;

  // Reads what the children write until `condition` holds. False at the deadline, or when all of them have ended and it
  // still does not.
  static bool Wait(const std::vector<Child*>& children, const std::function<bool()>& condition, Deadline deadline);

  // Waits for the end; its exit status, or -1 when a signal ended it, or at the deadline.
  int ExitStatus(Deadline deadline);

 private:
  static bool Read(const std::vector<Child*>& children, Deadline deadline);
  std::vector<std::string> Lines() const;

  pid_t pid_ = -1;
  int input_ = -1;
  int output_fd_ = -1;
  std::string output_;
};

}  // namespace annulus
