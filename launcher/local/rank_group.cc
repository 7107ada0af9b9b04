#include "launcher/local/rank_group.h"

#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "launcher/local/process_tree.h"

namespace annulus {
namespace {

constexpr Nanoseconds kGraceTime = 3 * kSecond;
constexpr Nanoseconds kKillInterval = 20 * kMillisecond;  // A process may fork between the scan and the signal.
constexpr Nanoseconds kKillTime = 10 * kSecond;

}  // namespace

Status RankGroup::Start(const ChildProgram& program, ChildProcess* process) {
  ANNULUS_RETURN_IF_ERROR(StartChild(program, process));
  ranks_.push_back({process->pid, true});
  return {};
}

int RankGroup::running() const { return static_cast<int>(std::ranges::count_if(ranks_, &Rank::running)); }

std::vector<RankGroup::Ended> RankGroup::Reap() {
  std::vector<Ended> ended;
  while (!all_gone_) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid == 0) break;
    if (pid < 0) {
      all_gone_ = true;  // ECHILD: a subreaper without children has no descendants.
      break;
    }
    const auto rank = std::ranges::find(ranks_, pid, &Rank::pid);
    if (rank == ranks_.end() || !rank->running) continue;  // An orphan that a rank left.
    rank->running = false;
    ended.push_back({static_cast<int>(rank - ranks_.begin()), status});
  }
  return ended;
}

void RankGroup::BeginEnding() {
  if (ending()) return;
  phase_ = Phase::kEnding;
  phase_deadline_ = DeadlineAfter(kGraceTime);
  SignalDescendants(SIGTERM);
  SignalDescendants(SIGCONT);  // A stopped process takes no other signal.
}

void RankGroup::BeginKilling() {
  if (phase_ == Phase::kKilling) return;
  if (phase_ == Phase::kEnding && !quiet_ && !all_gone_) say_("some processes did not end within 3 s; killing them");
  phase_ = Phase::kKilling;
  give_up_ = DeadlineAfter(kKillTime);
  KeepKilling();
}

void RankGroup::KeepKilling() {
  phase_deadline_ = DeadlineAfter(kKillInterval);
  SignalDescendants(SIGKILL);
  Reap();  // How they end does not matter any more.
  if (all_gone_ || Now() < give_up_) return;
  say_("some processes cannot be killed");
  all_gone_ = true;
  gave_up_ = true;
}

void RankGroup::Advance() {
  if (all_gone_ || Now() < phase_deadline_) return;
  if (phase_ == Phase::kEnding) {
    BeginKilling();
  } else if (phase_ == Phase::kKilling) {
    KeepKilling();
  }
}

}  // namespace annulus
