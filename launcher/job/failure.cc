#include "launcher/job/failure.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "launcher/job/exit_status.h"

namespace annulus {

const Failure& FirstCause(const std::vector<Failure>& failures) {
  const auto certain = std::ranges::find_if(failures, [](const Failure& failure) {
    if (failure.rank == Failure::kWholeHost) return true;
    return WIFSIGNALED(failure.wait_status) && WTERMSIG(failure.wait_status) != SIGABRT;
  });
  if (certain != failures.end()) return *certain;
  const auto is_named = [&](const Failure& failure) {
    return std::ranges::any_of(
        failures, [&](const Failure& other) { return other.is_consequence() && other.blames == failure.rank; });
  };
  const auto named = std::ranges::find_if(failures, is_named);
  if (named != failures.end()) return *named;
  const auto own = std::ranges::find_if(failures, [](const Failure& failure) { return !failure.is_consequence(); });
  return own != failures.end() ? *own : failures.front();
}

bool AwaitsCulprit(const std::vector<Failure>& failures, const std::function<bool(int rank)>& is_running) {
  const auto consequence = [](const Failure& failure) { return failure.is_consequence(); };
  return std::ranges::all_of(failures, consequence) && std::ranges::any_of(failures, [&](const Failure& failure) {
           return failure.blames >= 0 && is_running(failure.blames);
         });
}

std::string Describe(const Failure& failure) {
  if (failure.rank == Failure::kWholeHost) return failure.host + ": " + failure.text;
  const std::string who = "rank " + std::to_string(failure.rank) + " (pid " + std::to_string(failure.pid) +
                          (failure.host.empty() ? "" : " on " + failure.host) + ") ";
  if (WIFEXITED(failure.wait_status))
    return who + "exited with status " + std::to_string(WEXITSTATUS(failure.wait_status));
  const int signal = WTERMSIG(failure.wait_status);
  return who + "was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

int ExitStatusOf(const Failure& failure) {
  if (failure.rank == Failure::kWholeHost) return kExitHostLost;
  return WIFEXITED(failure.wait_status) ? WEXITSTATUS(failure.wait_status) : 128 + WTERMSIG(failure.wait_status);
}

}  // namespace annulus
