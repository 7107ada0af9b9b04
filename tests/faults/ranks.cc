#include "tests/faults/ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "base/check.h"

extern char** environ;

namespace annulus {

Ranks::Ranks(int nranks, const Environment& environment, const std::vector<std::string>& arguments, int special,
             const std::vector<std::string>& special_arguments)
    : nranks_(nranks), workers_(nranks) {
  for (int rank = 0; rank < nranks; ++rank) Start(rank, environment, rank == special ? special_arguments : arguments);
}

Ranks::~Ranks() {
  for (Worker& worker : workers_) {
    if (worker.pid > 0) {
      kill(worker.pid, SIGKILL);
      waitpid(worker.pid, nullptr, 0);
    }
    if (worker.fd >= 0) close(worker.fd);
  }
}

void Ranks::Start(int rank, const Environment& environment, const std::vector<std::string>& arguments) {
  int ends[2];
  ANNULUS_CHECK(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  const char* worker = std::getenv("FAULT_WORKER");
  ANNULUS_CHECK(worker != nullptr);
  Environment all = {{"ANNULUS_RANK", std::to_string(rank)},
                     {"ANNULUS_SIZE", std::to_string(nranks_)},
                     {"ANNULUS_RENDEZVOUS", port_.address()},
                     {"ANNULUS_JOB_KEY", "a key for tests, of enough characters"}};
  for (const auto& [name, value] : environment) all[name] = value;
  std::vector<std::string> texts;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::string(*entry).rfind("ANNULUS_", 0) != 0) texts.push_back(*entry);
  }
  for (const auto& [name, value] : all) texts.push_back(name + "=" + value);
  std::vector<char*> envp;
  for (std::string& text : texts) envp.push_back(text.data());
  envp.push_back(nullptr);
  std::vector<std::string> words = {worker};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  ANNULUS_CHECK(posix_spawn(&workers_[rank].pid, worker, &actions, nullptr, argv.data(), envp.data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  workers_[rank].fd = ends[0];
}

bool Ranks::Read(Deadline deadline) {
  std::vector<pollfd> polls;
  for (const Worker& worker : workers_) {
    if (worker.fd >= 0) polls.push_back({worker.fd, POLLIN, 0});
  }
  const Nanoseconds left = deadline - Now();
  if (polls.empty() || left <= 0) return false;
  if (poll(polls.data(), polls.size(), static_cast<int>(left / kMillisecond) + 1) <= 0) return false;
  for (Worker& worker : workers_) {
    char buffer[4096];
    ssize_t bytes = 0;
    while (worker.fd >= 0 && (bytes = read(worker.fd, buffer, sizeof buffer)) > 0) worker.output.append(buffer, bytes);
    if (worker.fd >= 0 && bytes == 0) {
      close(worker.fd);
      worker.fd = -1;
    }
  }
  return true;
}

bool Ranks::WaitForLine(const std::string& line, Deadline deadline) {
  const auto has_line = [&line](const Worker& worker) {
    return ("\n" + worker.output).find("\n" + line + "\n") != std::string::npos;
  };
  while (!std::all_of(workers_.begin(), workers_.end(), has_line)) {
    if (!Read(deadline)) return false;
  }
  return true;
}

void Ranks::Signal(int rank, int signal) { ANNULUS_CHECK(kill(workers_[rank].pid, signal) == 0); }

WorkerVerdict Ranks::Parse(int rank) const {
  WorkerVerdict verdict;
  std::istringstream lines(workers_[rank].output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "verdict") {
      words >> verdict.status >> verdict.rank >> verdict.at >> std::ws;
      std::getline(words, verdict.message);
    } else if (word == "ended") {
      words >> verdict.ended_at;
      verdict.valid = true;
    }
  }
  return verdict;
}

std::vector<WorkerVerdict> Ranks::Verdicts(int except, Deadline deadline) {
  for (;;) {
    std::vector<WorkerVerdict> verdicts;
    bool complete = true;
    for (int rank = 0; rank < nranks_; ++rank) {
      verdicts.push_back(Parse(rank));
      complete &= rank == except || verdicts.back().valid;
    }
    if (complete || !Read(deadline)) return verdicts;
  }
}

}  // namespace annulus
