// A rank of a scaling measurement: does allreduces of one library on command, and checks what the last one gave.
//
// Commands come on standard input, one per line; each is answered by one line on standard output. The library is linked
// in by the functions of peer_bench.h, which take their words from the command line.
//
//   start             joins the job and sums one number                -> started SECONDS
//   prepare BYTES     makes buffers                                    -> prepared
//   time CALLS AT     CALLS allreduces of them, from clock time AT on  -> timed BEGIN END CPU_SECONDS
//   check             compares the result with the sum                 -> checked
//
// Checking has a command of its own, and spoils the output for the next allreduce there: dozens of ranks share a few
// cores, and those that are done would take them from those that are not.
//
// Times are of the monotonic clock, which is one for all hosts that are namespaces of one machine: so ranks begin
// together without a message. Without further commands the rank leaves. Threads: one.
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/peers/peer_bench.h"

namespace annulus {
namespace {

constexpr size_t kPattern = 97;  // Inputs repeat after so many elements.

[[noreturn]] void Fail(int rank, const std::string& what) {
  std::cerr << "rank " << rank << ": " << what << std::endl;
  std::exit(1);
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The moment is what all ranks wait for.
void AwaitMoment(int rank, Nanoseconds at) {
  const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  itimerspec moment{};
  moment.it_value.tv_sec = at / kSecond;
  moment.it_value.tv_nsec = at % kSecond;
  uint64_t expirations = 0;
  if (timer < 0 || timerfd_settime(timer, TFD_TIMER_ABSTIME, &moment, nullptr) != 0 ||
      read(timer, &expirations, sizeof(expirations)) != sizeof(expirations)) {
    Fail(rank, "no timer");
  }
  close(timer);
}

class Rank {
 public:
  void Start(int* argc, char*** argv) {
    const Nanoseconds begin = Now();
    PeerStart(argc, argv, &rank_, &size_);
    float one = 1;
    float sum = 0;
    PeerAllreduce(&one, &sum, 1);
    if (sum != static_cast<float>(size_)) Fail(rank_, "the first sum is wrong");
    std::cout << "started " << static_cast<double>(Now() - begin) / kSecond << std::endl;
  }

  void Prepare(size_t bytes) {
    // The old ones go first.
    input_ = {};
    output_ = {};
    input_.resize(bytes / sizeof(float));
    output_.resize(input_.size());
    for (size_t i = 0; i < input_.size(); ++i) {
      input_[i] = static_cast<float>(static_cast<size_t>(rank_) + i % kPattern);
    }
    Spoil();
    std::cout << "prepared" << std::endl;
  }

  void Time(int calls, Nanoseconds at) {
    AwaitMoment(rank_, at);
    const double cpu = CpuSeconds();
    const Nanoseconds begin = Now();
    for (int call = 0; call < calls; ++call) PeerAllreduce(input_.data(), output_.data(), input_.size());
    const Nanoseconds end = Now();
    std::cout << "timed " << begin << ' ' << end << ' ' << CpuSeconds() - cpu << std::endl;
  }

  // Sums of small integers are exact in every order.
  void Check() {
    const auto ranks = static_cast<float>(size_);
    for (size_t i = 0; i < output_.size(); ++i) {
      const float expected = ranks * static_cast<float>(i % kPattern) + ranks * (ranks - 1) / 2;
      if (output_[i] == expected) continue;
      Fail(rank_,
           "element " + std::to_string(i) + " is " + std::to_string(output_[i]) + ", not " + std::to_string(expected));
    }
    Spoil();
    std::cout << "checked" << std::endl;
  }

 private:
  // What no allreduce has written is no sum.
  void Spoil() { std::fill(output_.begin(), output_.end(), std::numeric_limits<float>::quiet_NaN()); }

  int rank_ = -1;
  int size_ = 0;
  std::vector<float> input_;
  std::vector<float> output_;
};

int Main(int argc, char** argv) {
  Rank rank;
  bool started = false;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    size_t bytes = 0;
    int calls = 0;
    Nanoseconds at = 0;
    if (command == "start" && !started) {
      rank.Start(&argc, &argv);
      started = true;
    } else if (command == "prepare" && started && words >> bytes) {
      rank.Prepare(bytes);
    } else if (command == "time" && started && words >> calls >> at && calls > 0) {
      rank.Time(calls, at);
    } else if (command == "check" && started) {
      rank.Check();
    } else {
      std::cerr << "not understood: " << line << std::endl;
      return 2;
    }
  }
  if (started) PeerStop();
  return 0;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) { return annulus::Main(argc, argv); }
