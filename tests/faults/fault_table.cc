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
constexpr Nanoseconds kLongPause = 5 * kSecond;
// Spread of the moments at which a start-up is hit: all of it takes a few times as long.
constexpr Nanoseconds kStartStep = 10 * kMillisecond;
constexpr int kStartSteps = 30;
// A survivor that returns so much later than the first one waits for something that it need not.
constexpr Nanoseconds kLate = 100 * kMillisecond;

constexpr char kNoFailure[] = "30000";  // The deadline in ms where nothing is to fail.

struct Row {
  int tries = 0;
  int equal = 0;
  int wrong_sums = 0;
  int hangs = 0;
  int false_blame = 0;
  int survivors = 0;
  int late = 0;                    // Survivors that returned kLate after the first.
  std::vector<Nanoseconds> times;  // To the last rank's verdict.
};

struct Fault {
  const char* name;
  std::vector<std::string> special{};  // What the rank that fails runs, if not the same as the others.
  int first = 0;                       // Lowest rank that fails.
  bool on_hosts = false;
  bool cuts_off = false;   // The last rank is alone on its host, lives, and is to say what all others say.
  bool is_failure = true;  // Otherwise the job goes on.
  const char* deadline_ms = "2000";
  bool at_start = false;  // Injected while the job starts, not when all ranks are at work.
  // Makes `rank` fail; null when it does so itself.
  std::function<void(RankProcesses* ranks, Hosts* hosts, int rank)> inject{};
};

void Work(RankProcesses* ranks, Nanoseconds time) {
  Child::Wait(
      ranks->workers(), [] { return false; }, Now() + time);
}

void Judge(RankProcesses* ranks, int culprit, bool silent, Nanoseconds since, Row* row) {
  const std::vector<WorkerVerdict> verdicts = ranks->Verdicts(silent ? culprit : -1, Now() + kPatience);
  bool equal = true;
  Nanoseconds last = 0;
  Nanoseconds soonest = kNoDeadline;
  const WorkerVerdict& first = verdicts[culprit == 0 ? 1 : 0];
  for (int rank = 0; rank < kRanks; ++rank) {
    if (silent && rank == culprit) continue;
    const WorkerVerdict& verdict = verdicts[rank];
    if (!verdict.valid) ++row->hangs;
    if (verdict.valid && verdict.rank != culprit) ++row->false_blame;
    equal = equal && verdict.valid && verdict.rank == first.rank && verdict.message == first.message;
    last = std::max(last, verdict.at - since);
    if (verdict.valid) soonest = std::min(soonest, verdict.at - since);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    if ((silent && rank == culprit) || !verdicts[rank].valid) continue;
    ++row->survivors;
    row->late += verdicts[rank].at - since >= soonest + kLate;
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
  RankProcesses::Environment environment = {{"ANNULUS_TRANSPORT", tcp ? "tcp" : "shm"},
                                            {"ANNULUS_TIMEOUT_MS", fault.deadline_ms}};
  if (hosts != nullptr) environment["ANNULUS_RENDEZVOUS"] = Hosts::Address(0) + ":29500";
  RankProcesses ranks(kRanks, environment);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (hosts != nullptr) hosts->Enter(rank < (fault.cuts_off ? kRanks - 1 : 1) ? 0 : 1);
    const bool special = rank == culprit && !fault.special.empty();
    ranks.Start(rank, special ? fault.special : std::vector<std::string>{"until"});
  }
  if (fault.at_start) {
    ++row->tries;
    Work(&ranks, number % kStartSteps * kStartStep);
    fault.inject(&ranks, hosts.get(), culprit);
  }
  if (!ranks.WaitForLine("ready", Now() + kStart)) {
    std::fprintf(stderr, "%s: no start%s\n", fault.name, fault.at_start ? "" : ", not counted");
    for (int rank = 0; rank < kRanks; ++rank) std::fprintf(stderr, "%s", ranks.output(rank).c_str());
    row->hangs += fault.at_start;
    return;
  }
  if (!fault.at_start) ++row->tries;
  const Nanoseconds since = Now();
  if (fault.inject && !fault.at_start) fault.inject(&ranks, hosts.get(), culprit);
  // The rank that fails says nothing itself.
  const bool silent = !fault.cuts_off && (fault.special.empty() || fault.special[0] != "abort");
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
    std::printf("- | - | - |\n");
  } else {
    std::printf("%.3f s | %.3f s | %d of %d |\n", seconds(row.times.size() / 2), seconds(row.times.size() - 1),
                row.late, row.survivors);
  }
  std::fflush(stdout);
}

void Pause(RankProcesses* ranks, int rank, Nanoseconds time) {
  ranks->Signal(rank, SIGSTOP);
  Work(ranks, time);
  ranks->Signal(rank, SIGCONT);
}

std::vector<Fault> FaultsOfRanks() {
  const auto kill = [](RankProcesses* ranks, Hosts*, int rank) { ranks->Signal(rank, SIGKILL); };
  const auto stop = [](RankProcesses* ranks, Hosts*, int rank) { ranks->Signal(rank, SIGSTOP); };
  return {
      {.name = "SIGKILL of any rank", .inject = kill},
      {.name = "SIGSTOP of any rank, deadline 2 s", .inject = stop},
      {.name = "a rank that makes no further call, deadline 2 s", .special = {"idle"}, .first = 1},
      {.name = "a rank that destroys its communicator", .special = {"leave"}, .first = 1},
      {.name = "abort by any rank", .special = {"abort"}},
      {.name = "a pause of 0.8 s of any rank (no failure)",
       .is_failure = false,
       .deadline_ms = kNoFailure,
       .inject = [](RankProcesses* ranks, Hosts*, int rank) { Pause(ranks, rank, kPause); }},
      {.name = "a pause of 5 s of any rank, deadline 10 s (no failure)",
       .is_failure = false,
       .deadline_ms = "10000",
       .inject = [](RankProcesses* ranks, Hosts*, int rank) { Pause(ranks, rank, kLongPause); }},
  };
}

std::vector<Fault> FaultsOfPaths() {
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
  const auto unplug = [](RankProcesses* ranks, Hosts* hosts, int) {
    hosts->CutCable(1);
    Work(ranks, kBadPath);
    hosts->JoinCable(1);
    Work(ranks, kBadPath);
  };
  const auto lose_all = [](RankProcesses*, Hosts* hosts, int) {
    if (!hosts->LoseAnyPackets(1, 0)) std::fprintf(stderr, "no packet filter\n");
  };
  const auto lose_control = [](RankProcesses*, Hosts* hosts, int) {
    if (!hosts->LosePortAndNewConnections(1, 29500)) std::fprintf(stderr, "no packet filter\n");
  };
  std::vector<Fault> faults = {
      {.name = "control connections reset (no failure)", .is_failure = false, .inject = reset},
      {.name = "rendezvous connections reset while the job starts (no failure)",
       .is_failure = false,
       .at_start = true,
       .inject = reset},
      {.name = "a link down for 2 s (no failure)", .is_failure = false, .inject = unplug},
      {.name = "control connections reset, and SIGKILL", .inject = reset_and_kill},
      {.name = "control connections silent for 2 s, and SIGKILL", .inject = lose_and_kill},
      {.name = "no packet passes between a rank and all others, for good; deadline 2 s",
       .cuts_off = true,
       .inject = lose_all},
      {.name = "the same, deadline 30 s", .cuts_off = true, .deadline_ms = kNoFailure, .inject = lose_all},
      {.name = "one control path is silent for good, though data passes; deadline 30 s",
       .cuts_off = true,
       .deadline_ms = kNoFailure,
       .inject = lose_control},
  };
  for (Fault& fault : faults) {
    fault.first = fault.cuts_off ? kRanks - 1 : 1;
    fault.on_hosts = true;
    if (!fault.is_failure) fault.deadline_ms = kNoFailure;
  }
  return faults;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  ::setenv("FAULT_WORKER", "tests/faults/worker", 0);
  const int tries = argc > 1 ? std::atoi(argv[1]) : 10;
  std::printf(
      "| fault | tries | verdicts equal | wrong sums | hangs | false blame | median | worst | survivors over 100 ms "
      "after the first |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  const size_t first = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0;
  std::vector<annulus::Fault> faults = annulus::FaultsOfRanks();
  for (const annulus::Fault& fault : annulus::FaultsOfPaths()) faults.push_back(fault);
  for (size_t row = first; row < faults.size(); ++row) {
    const annulus::Fault& fault = faults[row];
    annulus::Row counts;
    for (int i = 0; i < tries; ++i) annulus::Try(fault, i, &counts);
    annulus::Print(fault, counts);
  }
  return 0;
}
