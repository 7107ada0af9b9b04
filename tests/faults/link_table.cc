// Prints the table of docs/failures.md on the connections of links: what a job does while its paths fail, over many
// tries.
//
//   bazel run //tests/faults:link_table -- 100      # tries per row; a second number leaves out that many rows, a third
//                                                  # says how many rows to print
//
// A row is one job of three ranks on two hosts (network namespaces, so it needs root) that sum 64 KiB in a loop over
// TCP, while one thing after the other happens to their connections. A stall lasts from the moment at which the path is
// there again until the call that is then under way has ended; calls of less than 10 ms count as none. Threads: one.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/faults/hosts.h"
#include "tests/faults/rank_processes.h"

namespace annulus {
namespace {

constexpr int kRanks = 3;
constexpr int kPort = 29500;
constexpr int kEnds = 2;  // Each connection that is made again has two, and both count it.
constexpr Nanoseconds kStart = 60 * kSecond;
constexpr Nanoseconds kPatience = 60 * kSecond;

struct PathFault {
  const char* name;
  Nanoseconds rest;      // Between two of them.
  Nanoseconds away = 0;  // How long there is no path.
  const char* sockets = "1";
  const char* encrypt = "off";
  // Returns false where the kernel cannot do it.
  std::function<bool(Hosts* hosts)> inject;
};

struct LinkRow {
  int tries = 0, wrong_sums = 0, verdicts = 0, hangs = 0;
  uint64_t reconnects = 0, bytes_sent_again = 0;
  std::vector<Nanoseconds> stalls;
};

struct Span {
  Nanoseconds begin = 0, end = 0;
};

void Work(RankProcesses* ranks, Nanoseconds time) {
  Child::Wait(
      ranks->workers(), [] { return false; }, Now() + time);
}

// What rank 0 said.
std::vector<Span> SlowCalls(const std::string& output) {
  std::vector<Span> calls;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    Span call;
    if (words >> word >> call.begin >> call.end && word == "slow") calls.push_back(call);
  }
  return calls;
}

Nanoseconds StallAt(Nanoseconds back, const std::vector<Span>& calls) {
  constexpr Nanoseconds kSoon = 50 * kMillisecond;
  Nanoseconds stall = 0;
  for (const Span& call : calls) {
    if (call.end > back && call.begin < back + kSoon) stall = std::max(stall, call.end - std::max(call.begin, back));
  }
  return stall;
}

void Count(RankProcesses* ranks, LinkRow* row) {
  ranks->worker(0).CloseInput();
  for (int rank = 0; rank < kRanks; ++rank) {
    Child& worker = ranks->worker(rank);
    const bool ended = worker.ExitStatus(Now() + kPatience) == 0;
    const bool told = worker.CountLines("verdict ") > 0;
    row->verdicts += told;
    row->hangs += !ended && !told;
    row->wrong_sums += worker.CountLines("check failed") > 0;
    if (!ended || told) std::fprintf(stderr, "rank %d: %s\n", rank, worker.output().c_str());
    uint64_t count = 0, bytes = 0;
    if (std::istringstream(worker.After("reconnects")) >> count >> bytes) {
      row->reconnects += count;
      row->bytes_sent_again += bytes;
    }
  }
}

bool Try(const PathFault& fault, int tries, LinkRow* row) {
  std::string why;
  const std::unique_ptr<Hosts> hosts = Hosts::Create(&why);
  if (hosts == nullptr) return std::fprintf(stderr, "%s\n", why.c_str()), false;
  RankProcesses ranks(kRanks, {{"ANNULUS_TRANSPORT", "tcp"},
                               {"ANNULUS_RENDEZVOUS", Hosts::Address(0) + ":" + std::to_string(kPort)},
                               {"ANNULUS_TCP_SOCKETS", fault.sockets},
                               {"ANNULUS_ENCRYPT", fault.encrypt},
                               {"ANNULUS_RECONNECT_MS", "60000"},
                               {"ANNULUS_TIMEOUT_MS", "60000"}});
  for (int rank = 0; rank < kRanks; ++rank) {
    hosts->Enter(rank == 0 ? 0 : 1);
    ranks.Start(rank, {"timed", "65536"});
  }
  if (!ranks.WaitForLine("ready", Now() + kStart)) return std::fprintf(stderr, "no start\n"), false;
  std::minstd_rand random(7);
  std::vector<Nanoseconds> backs;
  for (; row->tries < tries; ++row->tries) {
    Work(&ranks, fault.rest + static_cast<Nanoseconds>(random() % 50) * kMillisecond);
    if (fault.away == 0) backs.push_back(Now());
    if (!fault.inject(hosts.get())) return false;
    if (fault.away == 0) continue;
    Work(&ranks, fault.away);
    hosts->JoinCable(1);
    backs.push_back(Now());
  }
  Work(&ranks, fault.rest + kSecond);
  Count(&ranks, row);
  const std::vector<Span> calls = SlowCalls(ranks.output(0));
  for (const Nanoseconds back : backs) row->stalls.push_back(StallAt(back, calls));
  return true;
}

void Print(const PathFault& fault, LinkRow row) {
  std::sort(row.stalls.begin(), row.stalls.end());
  const auto ms = [&row](size_t index) { return static_cast<double>(row.stalls[index]) / kMillisecond; };
  std::printf("| %s | %d | %d | %d | %d | %.0f ms | %.0f ms | %.0f ms | %llu | %llu |\n", fault.name, row.tries,
              row.wrong_sums, row.verdicts, row.hangs, ms(row.stalls.size() / 2), ms(row.stalls.size() * 99 / 100),
              ms(row.stalls.size() - 1), static_cast<unsigned long long>(row.reconnects / kEnds),
              static_cast<unsigned long long>(row.bytes_sent_again));
  std::fflush(stdout);
}

std::vector<PathFault> PathFaults() {
  const auto reset = [](Hosts* hosts) { return hosts->ResetOtherConnections(1, kPort), true; };
  const auto forget = [](Hosts* hosts) { return hosts->ForgetOtherConnections(1, kPort); };
  const auto move = [](Hosts* hosts) { return hosts->MoveOtherConnections(1, kPort); };
  const auto unplug = [](Hosts* hosts) { return hosts->CutCable(1), true; };
  constexpr Nanoseconds kShort = 100 * kMillisecond;
  return {
      {.name = "connections reset", .rest = kShort, .inject = reset},
      {.name = "the same, three sockets per link", .rest = kShort, .sockets = "3", .inject = reset},
      {.name = "the same, encrypted", .rest = kShort, .encrypt = "required", .inject = reset},
      {.name = "the same, three sockets per link, encrypted",
       .rest = kShort,
       .sockets = "3",
       .encrypt = "required",
       .inject = reset},
      {.name = "source ports changed", .rest = kSecond, .inject = move},
      {.name = "the same, encrypted", .rest = kSecond, .encrypt = "required", .inject = move},
      {.name = "the same, three sockets per link, encrypted",
       .rest = kSecond,
       .sockets = "3",
       .encrypt = "required",
       .inject = move},
      {.name = "connections forgotten", .rest = 3 * kSecond, .inject = forget},
      {.name = "the same, encrypted", .rest = 3 * kSecond, .encrypt = "required", .inject = forget},
      {.name = "the same, three sockets per link, encrypted",
       .rest = 3 * kSecond,
       .sockets = "3",
       .encrypt = "required",
       .inject = forget},
      {.name = "interface down for 2 s", .rest = 2 * kSecond, .away = 2 * kSecond, .inject = unplug},
      {.name = "interface down for 5 s", .rest = 2 * kSecond, .away = 5 * kSecond, .inject = unplug},
      {.name = "the same, encrypted",
       .rest = 2 * kSecond,
       .away = 5 * kSecond,
       .encrypt = "required",
       .inject = unplug},
  };
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  ::setenv("FAULT_WORKER", "tests/faults/worker", 0);
  const int tries = argc > 1 ? std::atoi(argv[1]) : 10;
  const size_t first = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0;
  const size_t most = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : SIZE_MAX;
  std::printf(
      "| fault | tries | wrong sums | verdicts | hangs | stall, median | 99 %% | longest | connections made again | "
      "bytes "
      "sent again |\n|---|---|---|---|---|---|---|---|---|---|\n");
  const std::vector<annulus::PathFault> faults = annulus::PathFaults();
  for (size_t i = first; i < faults.size() && i - first < most; ++i) {
    annulus::LinkRow row;
    if (annulus::Try(faults[i], tries, &row)) annulus::Print(faults[i], row);
  }
  return 0;
}
