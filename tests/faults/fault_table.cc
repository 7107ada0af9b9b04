// Prints the table of docs/failures.md: what real processes were told when one of them failed, over many tries.
//
//   bazel run //tests/faults:fault_table -- 100      # tries per row; a second number leaves out that many rows
//
// A try is a job of four ranks that sum in a loop, over shared memory and TCP in turn; which rank fails changes with
// the try. The rows about connections need root, for network namespaces, and are left out without it. Threads: one.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

#include "tests/faults/hosts.h"
#include "tests/faults/rank_processes.h"

namespace annulus {
namespace {

constexpr int kRanks = 4;
constexpr Nanoseconds kStart = 60 * kSecond;
constexpr Nanoseconds kPatience = 30 * kSecond;  // Without a verdict by then, a rank hangs.
constexpr Nanoseconds kPause = 800 * kMillisecond;
constexpr Nanoseconds kBadPath = 2 * kSecond;

struct Row {
  int tries = 0;
  int equal = 0;
  int wrong_sums = 0;
  int hangs = 0;
  int false_blame = 0;
  std::vector<Nanoseconds> times;  // To the last rank's verdict.
};

struct Fault {
  const char* name;
  std::vector<std::string> special;  // What the rank that fails runs, if not the same as the others.
  int first = 0;                     // Lowest rank that fails.
  bool on_hosts = false;
  bool is_failure = true;  // Otherwise the job goes on.
  // Makes `rank` fail; null when it does so itself.
  std::function<void(RankProcesses* ranks, Hosts* hosts, int rank)> inject;
};

void Work(RankProcesses* ranks, Nanoseconds time) {
  Child::Wait(
      ranks->workers(), [] { return false; }, Now() + time);
}

void Judge(RankProcesses* ranks, int culprit, bool silent, Nanoseconds since, Row* row) {
  const std::vector<WorkerVerdict> verdicts = ranks->Verdicts(silent ? culprit : -1, Now() + kPatience);
  bool equal = true;
  Nanoseconds last = 0;
  const WorkerVerdict& first = verdicts[culprit == 0 ? 1 : 0];
  for (int rank = 0; rank < kRanks; ++rank) {
    if (silent && rank == culprit) continue;
    const WorkerVerdict& verdict = verdicts[rank];
    if (!verdict.valid) ++row->hangs;
    if (verdict.valid && verdict.rank != culprit) ++row->false_blame;
    equal = equal && verdict.valid && verdict.rank == first.rank && verdict.message == first.message;
    last = std::max(last, verdict.at - since);
  }
  row->equal += equal;
  row->times.push_back(last);
}

void ExpectNothing(RankProcesses* ranks, Row* row) {
  ranks->worker(0).CloseInput();
  bool good = true;
  for (int rank = 0; rank < kRanks; ++rank) {
    const bool ended = ranks->worker(rank).ExitStatus(Now() + kPatience) == 0;
    const bool told = ranks->worker(rank).CountLines("verdict ") > 0;
    row->hangs += !ended && !told;
    row->false_blame += told;
    good = good && ended && !told;
  }
  row->equal += good;
}

void Try(const Fault& fault, int number, Row* row) {
  std::string why;
  std::unique_ptr<Hosts> hosts = fault.on_hosts ? Hosts::Create(&why) : nullptr;
  if (fault.on_hosts && hosts == nullptr) return;
  const int culprit = fault.first + number % (kRanks - fault.first);
  const bool tcp = fault.on_hosts || number % 2 == 1;
  RankProcesses::Environment environment = {{"ANNULUS_TRANSPORT", tcp ? "tcp" : "shm"}, {"ANNULUS_TIMEOUT_MS", "2000"}};
  if (!fault.is_failure) environment["ANNULUS_TIMEOUT_MS"] = "30000";
  if (hosts != nullptr) environment["ANNULUS_RENDEZVOUS"] = Hosts::Address(0) + ":29500";
  RankProcesses ranks(kRanks, environment);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (hosts != nullptr) hosts->Enter(rank == 0 ? 0 : 1);
    const bool special = rank == culprit && !fault.special.empty();
    ranks.Start(rank, special ? fault.special : std::vector<std::string>{"until"});
  }
  if (!ranks.WaitForLine("ready", Now() + kStart)) {
    std::fprintf(stderr, "%s: no start, not counted\n%s", fault.name, ranks.output(0).c_str());
    return;
  }
  ++row->tries;
  const Nanoseconds since = Now();
  if (fault.inject) fault.inject(&ranks, hosts.get(), culprit);
  const bool silent = fault.special.empty() || fault.special[0] != "abort";  // The rank that fails says nothing itself.
  fault.is_failure ? Judge(&ranks, culprit, silent, since, row) : ExpectNothing(&ranks, row);
  for (int rank = 0; rank < kRanks; ++rank)
    row->wrong_sums += ranks.output(rank).find("check failed") != std::string::npos;
}

void Print(const Fault& fault, Row row) {
  std::sort(row.times.begin(), row.times.end());
  const auto seconds = [&row](size_t index) { return static_cast<double>(row.times[index]) / kSecond; };
  std::printf("| %s | %d | %d | %d | %d | %d | ", fault.name, row.tries, row.equal, row.wrong_sums, row.hangs,
              row.false_blame);
  if (row.times.empty()) {
    std::printf("- | - |\n");
  } else {
    std::printf("%.3f s | %.3f s |\n", seconds(row.times.size() / 2), seconds(row.times.size() - 1));
  }
  std::fflush(stdout);
}

std::vector<Fault> Faults() {
  const auto kill = [](RankProcesses* ranks, Hosts*, int rank) { ranks->Signal(rank, SIGKILL); };
  const auto stop = [](RankProcesses* ranks, Hosts*, int rank) { ranks->Signal(rank, SIGSTOP); };
  const auto pause = [](RankProcesses* ranks, Hosts*, int rank) {
    ranks->Signal(rank, SIGSTOP);
    Work(ranks, kPause);
    ranks->Signal(rank, SIGCONT);
  };
  const auto reset = [](RankProcesses* ranks, Hosts* hosts, int) {
    hosts->ResetConnections(0, 29500);
    Work(ranks, 500 * kMillisecond);
  };
  const auto reset_and_kill = [](RankProcesses* ranks, Hosts* hosts, int rank) {
    hosts->ResetConnections(0, 29500);
    ranks->Signal(rank, SIGKILL);
  };
  const auto lose_and_kill = [](RankProcesses* ranks, Hosts* hosts, int rank) {
    if (!hosts->LoseAnyPackets(1, 29500)) std::fprintf(stderr, "no packet filter\n");
    ranks->Signal(rank, SIGKILL);
    Work(ranks, kBadPath);
    hosts->LoseNoPackets(1);
  };
  return {
      {"SIGKILL of any rank", {}, 0, false, true, kill},
      {"SIGSTOP of any rank, deadline 2 s", {}, 0, false, true, stop},
      {"a rank that makes no further call, deadline 2 s", {"idle"}, 1, false, true, nullptr},
      {"a rank that destroys its communicator", {"leave"}, 1, false, true, nullptr},
      {"abort by any rank", {"abort"}, 0, false, true, nullptr},
      {"a pause of 0.8 s (no failure)", {}, 0, false, false, pause},
      {"control connections reset (no failure)", {}, 1, true, false, reset},
      {"control connections reset, and SIGKILL", {}, 1, true, true, reset_and_kill},
      {"control connections silent for 2 s, and SIGKILL", {}, 1, true, true, lose_and_kill},
  };
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  ::setenv("FAULT_WORKER", "tests/faults/worker", 0);
  const int tries = argc > 1 ? std::atoi(argv[1]) : 10;
  std::printf("| fault | tries | verdicts equal | wrong sums | hangs | false blame | median | worst |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  const size_t first = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0;
  const std::vector<annulus::Fault> faults = annulus::Faults();
  for (size_t row = first; row < faults.size(); ++row) {
    const annulus::Fault& fault = faults[row];
    annulus::Row counts;
    for (int i = 0; i < tries; ++i) annulus::Try(fault, i, &counts);
    annulus::Print(fault, counts);
  }
  return 0;
}
