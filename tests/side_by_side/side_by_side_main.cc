// The main function of tests that wait more than they compute: each test runs in a process of its own, several of them
// at the same time, so that their waits pass together. In place of gtest_main; a target's `env` says how:
//
//   SIDE_BY_SIDE       how many run at a time
//   SIDE_BY_SIDE_ONLY  Names, or parts of names, with colons between them. Only such tests run beside others; the rest
//                      follow one at a time, for what they take may be asserted. Unset: all do.
//   SOAK_REPEATS       as for repeating_main
//
// With arguments it is an ordinary main function: one process, one test after another.
//
// Each process loads the program anew. Tests of the whole library are linked statically (`linkstatic`): otherwise they
// have more than 200 shared libraries, which take 60 ms of a processor each time, and twice that under a sanitizer.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"

namespace annulus {
namespace {

// A process of this program, whose output goes into memory.
struct Process {
  std::string test;
  Nanoseconds begin = 0;
  Nanoseconds took = 0;
  int status = -1;  // As waitpid() has it.
  pid_t pid = -1;
  int output = -1;
};

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

Process Begin(const std::string& test, const std::string& argument, const std::string& folder) {
  Process process;
  process.test = test;
  process.begin = Now();
  process.output = memfd_create("output", MFD_CLOEXEC);
  ANNULUS_CHECK(process.output >= 0);
  process.pid = fork();
  ANNULUS_CHECK(process.pid >= 0);
  if (process.pid > 0) return process;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) ANNULUS_CHECK(dup2(process.output, fd) == fd);
  fcntl(process.output, F_SETFL, O_APPEND);  // Its own children may write there too.
  unsetenv("XML_OUTPUT_FILE");
  unsetenv("TEST_PREMATURE_EXIT_FILE");
  if (!folder.empty()) setenv("TEST_TMPDIR", folder.c_str(), 1);
  execl("/proc/self/exe", program_invocation_name, argument.c_str(), static_cast<char*>(nullptr));
  std::perror("exec");
  _exit(127);
}

std::string OutputOf(const Process& process) {
  std::string output;
  char buffer[65536];
  for (off_t at = 0;;) {
    const ssize_t got = pread(process.output, buffer, sizeof buffer, at);
    if (got <= 0) return output;
    output.append(buffer, static_cast<size_t>(got));
    at += got;
  }
}

// The names of all tests that the filter leaves, if there is one; none if the program cannot tell.
std::vector<std::string> Tests() {
  Process listing = Begin("", "--gtest_list_tests", "");
  ANNULUS_CHECK(waitpid(listing.pid, &listing.status, 0) == listing.pid);
  std::vector<std::string> tests;
  std::istringstream lines(OutputOf(listing));
  close(listing.output);
  if (listing.status != 0) return tests;
  std::string suite;
  for (std::string line; std::getline(lines, line);) {
    line.erase(std::min(line.find("  #"), line.size()));  // A parameter's value.
    if (line.starts_with("  ")) {
      tests.push_back(suite + line.substr(2));
    } else if (line.ends_with('.')) {
      suite = line;
    }
  }
  return tests;
}

bool MayHaveCompany(const std::string& test) {
  std::istringstream parts(Variable("SIDE_BY_SIDE_ONLY"));
  bool any = false;
  for (std::string part; std::getline(parts, part, ':');) {
    if (test.find(part) != std::string::npos) return true;
    any = true;
  }
  return !any;
}

// Waits until a process has ended, and returns its number. Bazel's time may be up before: then this names those that
// run, shows what they have said, and exits; they are killed.
pid_t WaitForAny(const std::vector<Process>& running, int* status) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int each : {SIGCHLD, SIGTERM}) sigaddset(&signals, each);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  for (;;) {
    const pid_t ended = waitpid(-1, status, WNOHANG);
    if (ended != 0) return ended;
    if (sigwaitinfo(&signals, nullptr) != SIGTERM) continue;
    for (const Process& each : running)
      std::printf("%s\n[  FAILED  ] %s: time is up\n", OutputOf(each).c_str(), each.test.c_str());
    std::fflush(stdout);
    std::_Exit(1);
  }
}

// Runs the tests, `most` at a time, in their order; appends what became of them.
void Run(const std::vector<std::string>& tests, size_t most, std::vector<Process>* ended) {
  const std::string folder = Variable("TEST_TMPDIR");
  std::vector<Process> running;
  for (size_t next = 0; next < tests.size() || !running.empty();) {
    if (next < tests.size() && running.size() < most) {
      const std::string own = folder.empty() ? "" : folder + "/" + std::to_string(ended->size() + running.size());
      ANNULUS_CHECK(own.empty() || mkdir(own.c_str(), 0700) == 0 || errno == EEXIST);
      running.push_back(Begin(tests[next], "--gtest_filter=" + tests[next], own));
      ++next;
      continue;
    }
    int status = 0;
    const pid_t pid = WaitForAny(running, &status);
    const auto process = std::ranges::find(running, pid, &Process::pid);
    if (process == running.end()) continue;
    process->status = status;
    process->took = Now() - process->begin;
    std::printf("%s\n", OutputOf(*process).c_str());
    if (WIFSIGNALED(status)) std::printf("[  FAILED  ] %s: signal %d\n", process->test.c_str(), WTERMSIG(status));
    std::fflush(stdout);
    close(process->output);
    ended->push_back(*process);
    running.erase(process);
  }
}

double Seconds(Nanoseconds time) { return static_cast<double>(time) / kSecond; }

// For Bazel: which tests there were, and how long each took.
void WriteReport(const std::vector<Process>& tests, Nanoseconds took) {
  const std::string path = Variable("XML_OUTPUT_FILE");
  if (path.empty()) return;
  const auto failures = std::ranges::count_if(tests, [](const Process& test) { return test.status != 0; });
  std::ofstream out(path);
  out << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      << "<testsuites tests=\"" << tests.size() << "\" failures=\"" << failures << "\" time=\"" << Seconds(took)
      << "\" name=\"AllTests\">\n<testsuite name=\"side_by_side\" tests=\"" << tests.size() << "\" failures=\""
      << failures << "\" time=\"" << Seconds(took) << "\">\n";
  for (const Process& test : tests) {
    const size_t dot = test.test.find('.');
    out << "<testcase name=\"" << test.test.substr(dot + 1) << "\" classname=\"" << test.test.substr(0, dot)
        << "\" status=\"run\" time=\"" << Seconds(test.took) << "\">"
        << (test.status != 0 ? "<failure message=\"see the log\"/>" : "") << "</testcase>\n";
  }
  out << "</testsuite>\n</testsuites>\n";
}

int RunSideBySide() {
  const int most = std::atoi(Variable("SIDE_BY_SIDE").c_str());
  ANNULUS_CHECK(most > 0);                               // An `env` of the target.
  ANNULUS_CHECK(Variable("TEST_TOTAL_SHARDS").empty());  // The processes take their place.
  const std::string repeats = Variable("SOAK_REPEATS");
  if (std::getenv("TEST_SOAK") != nullptr && !repeats.empty()) setenv("GTEST_REPEAT", repeats.c_str(), 1);
  const Nanoseconds begin = Now();
  std::vector<std::string> rest = Tests();
  if (rest.empty()) std::printf("no tests\n");
  std::vector<std::string> together;
  std::ranges::copy_if(rest, std::back_inserter(together), MayHaveCompany);
  std::erase_if(rest, MayHaveCompany);
  std::vector<Process> ended;
  Run(together, static_cast<size_t>(most), &ended);
  Run(rest, 1, &ended);
  WriteReport(ended, Now() - begin);
  int failures = 0;
  for (const Process& test : ended) {
    if (test.status == 0) continue;
    ++failures;
    std::printf("[  FAILED  ] %s\n", test.test.c_str());
  }
  std::printf("%zu tests, %d failed\n", ended.size(), failures);
  return failures == 0 && !ended.empty() ? 0 : 1;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  if (argc == 1) return annulus::RunSideBySide();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
