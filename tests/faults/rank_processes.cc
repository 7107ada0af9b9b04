#include "tests/faults/rank_processes.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "base/check.h"

namespace annulus {

RankProcesses::RankProcesses(int nranks, const Environment& environment)
    : environment_(environment), workers_(nranks) {}

RankProcesses::RankProcesses(int nranks, const Environment& environment, const std::vector<std::string>& arguments,
                             int special, const std::vector<std::string>& special_arguments)
    : RankProcesses(nranks, environment) {
  for (int rank = 0; rank < nranks; ++rank) Start(rank, rank == special ? special_arguments : arguments);
}

RankProcesses::Environment RankProcesses::EnvironmentOf(int rank) const {
  Environment all = {{"ANNULUS_RANK", std::to_string(rank)},
                     {"ANNULUS_SIZE", std::to_string(workers_.size())},
                     {"ANNULUS_RENDEZVOUS", port_.address()},
                     {"ANNULUS_JOB_KEY", "a key for tests, of enough characters"}};
  for (const auto& [name, value] : environment_) all[name] = value;
  return all;
}

void RankProcesses::Start(int rank, const std::vector<std::string>& arguments, const Environment& environment) {
  const char* worker = std::getenv("FAULT_WORKER");
  ANNULUS_CHECK(worker != nullptr && workers_[rank] == nullptr);
  Environment all = EnvironmentOf(rank);
  for (const auto& [name, value] : environment) all[name] = value;
  workers_[rank] = std::make_unique<Child>(worker, arguments, all);
}

std::vector<Child*> RankProcesses::workers() const {
  std::vector<Child*> children;
  for (const auto& worker : workers_) {
    if (worker != nullptr) children.push_back(worker.get());
  }
  return children;
}

bool RankProcesses::WaitForLine(const std::string& line, Deadline deadline) {
  const auto everywhere = [&] {
    return std::all_of(workers_.begin(), workers_.end(), [&](const auto& worker) { return worker->HasLine(line); });
  };
  return Child::Wait(workers(), everywhere, deadline);
}

WorkerVerdict RankProcesses::Parse(int rank) const {
  WorkerVerdict verdict;
  const std::string& text = output(rank);
  std::istringstream lines(text.substr(0, text.rfind('\n') + 1));  // Whole ones.
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "verdict") {
      words >> verdict.status >> verdict.rank >> verdict.at >> std::ws;
      std::getline(words, verdict.message);
    } else if (word == "ended") {
      words >> verdict.ended_at;
      verdict.valid = verdict.at != 0;
    }
  }
  return verdict;
}

std::vector<WorkerVerdict> RankProcesses::Verdicts(int except, Deadline deadline) {
  std::vector<WorkerVerdict> verdicts(workers_.size());
  const auto complete = [&] {
    bool all = true;
    for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
      verdicts[rank] = Parse(rank);
      all &= rank == except || verdicts[rank].valid;
    }
    return all;
  };
  Child::Wait(workers(), complete, deadline);
  return verdicts;
}

}  // namespace annulus
