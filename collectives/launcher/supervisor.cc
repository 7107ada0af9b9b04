#include "collectives/launcher/supervisor.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "collectives/launcher/process_tree.h"
#include "collectives/launcher/rank_process.h"

namespace annulus {
namespace {

// A rank that loses a peer learns it within milliseconds and exits too, and may be reaped first on a busy machine.
constexpr Nanoseconds kJudgingTime = 50 * kMillisecond;
constexpr Nanoseconds kGraceTime = 3 * kSecond;
constexpr Nanoseconds kKillInterval = 20 * kMillisecond;  // A process may fork between the look and the signal.
constexpr Nanoseconds kKillTime = 10 * kSecond;
constexpr Nanoseconds kDrainTime = 1 * kSecond;

std::string DescribeEnd(int wait_status) {
  if (WIFEXITED(wait_status)) return "exited with status " + std::to_string(WEXITSTATUS(wait_status));
  const int signal = WTERMSIG(wait_status);
  return "was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

int ExitStatusOf(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

// Raises the limit of open files to what the system allows, for two pipes per rank. Returns the former limit.
rlimit RaiseOpenFiles() {
  rlimit former{};
  getrlimit(RLIMIT_NOFILE, &former);
  rlimit raised = former;
  raised.rlim_cur = raised.rlim_max;
  setrlimit(RLIMIT_NOFILE, &raised);
  return former;
}

}  // namespace

Supervisor::Supervisor(const Arguments& arguments, const Job& job, const GuardedContext& context)
    : arguments_(arguments), job_(job), context_(context), out_(STDOUT_FILENO), err_(STDERR_FILENO) {}

Supervisor::~Supervisor() {
  if (signal_fd_ >= 0) close(signal_fd_);
}

int Supervisor::Run() {
  if (!OpenSignals()) return kExitCannotLaunch;
  StartRanks();
  while (!Finished()) {
    PollOnce();
    Advance();
  }
  return exit_status_;
}

bool Supervisor::OpenSignals() {
  signal_fd_ = signalfd(-1, &context_.caught, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signal_fd_ < 0) std::fprintf(stderr, "annulus-run: cannot watch signals: %s\n", std::strerror(errno));
  return signal_fd_ >= 0;
}

void Supervisor::StartRanks() {
  RankProgram program;
  program.command = arguments_.command;
  program.capture = arguments_.prefix;
  program.signal_mask = context_.original;
  program.open_files = RaiseOpenFiles();
  if (arguments_.timeout_s > 0) job_deadline_ = DeadlineAfter(arguments_.timeout_s * kSecond);
  for (int rank = 0; rank < arguments_.nranks; ++rank) {
    program.rank = rank;
    program.environment = job_.EnvironmentOf(rank);
    RankProcess process;
    const Status status = StartRank(program, &process);
    if (!status.ok()) {
      Say(status.message());
      exit_status_ = status.code() == Code::kSystem ? kExitCannotLaunch
                     : status.os_errno() == ENOENT  ? kExitNotFound
                                                    : kExitCannotExecute;
      BeginKilling();
      return;
    }
    ranks_.push_back({process.pid, true});
    if (!arguments_.prefix) continue;
    const std::string prefix = "[" + std::to_string(rank) + "] ";
    sources_.push_back(std::make_unique<LineSource>(process.out_fd, &out_, prefix));
    sources_.push_back(std::make_unique<LineSource>(process.err_fd, &err_, prefix));
  }
}

void Supervisor::PollOnce() {
  std::vector<pollfd> polled{{signal_fd_, POLLIN, 0}};
  // Polled even with nothing to write, to learn that the reader has gone; poll skips negative descriptors.
  for (const Sink* sink : {&out_, &err_}) {
    const short wanted = sink->empty() ? 0 : POLLOUT;
    polled.push_back({sink->broken() ? -1 : sink->fd(), wanted, 0});
  }
  for (const auto& source : sources_) polled.push_back({source->sink()->full() ? -1 : source->fd(), POLLIN, 0});
  if (poll(polled.data(), polled.size(), PollTimeoutMs()) <= 0) return;
  if (polled[0].revents != 0) TakeSignals();
  size_t at = 1;
  for (Sink* sink : {&out_, &err_}) {
    const short events = polled[at++].revents;
    if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
      sink->Break();
    } else if ((events & POLLOUT) != 0) {
      sink->WriteSome();
    }
  }
  for (const auto& source : sources_) {
    if (polled[at++].revents != 0) source->ReadSome();
  }
}

int Supervisor::PollTimeoutMs() const {
  Deadline next = std::min(phase_deadline_, give_up_);
  if (phase_ == Phase::kRunning && !all_gone_) next = std::min(next, job_deadline_);
  if (next == kNoDeadline) return -1;
  const Nanoseconds left = std::max<Nanoseconds>(next - Now(), 0);
  constexpr Nanoseconds kLongest = 1000 * kSecond;  // Fits poll's int.
  return static_cast<int>((std::min(left, kLongest) + kMillisecond - 1) / kMillisecond);
}

void Supervisor::TakeSignals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD) Interrupt(static_cast<int>(info.ssi_signo));
  }
  // After the interrupts: the terminal's reaches the ranks too, and their deaths are no failures then.
  Reap();
}

void Supervisor::Interrupt(int signal) {
  interrupted_ = true;
  if (all_gone_) {
    give_up_ = Now();  // Only output is left, and nobody takes it.
  } else if (getppid() != context_.guardian) {
    Say("annulus-run itself was killed; killing all ranks");
    BeginKilling();
  } else if (phase_ == Phase::kEnding || phase_ == Phase::kKilling) {
    BeginKilling();  // Asked twice.
  } else {
    exit_status_ = 128 + signal;
    Say("stopped by signal " + std::to_string(signal) + " (" + strsignal(signal) + "); ending all ranks");
    BeginEnding();
  }
}

void Supervisor::Reap() {
  while (!all_gone_) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid == 0) return;
    if (pid < 0) {
      // ECHILD: who has no child has no descendant, as we are a subreaper.
      all_gone_ = true;
      give_up_ = interrupted_ ? DeadlineAfter(kDrainTime) : kNoDeadline;
      return;
    }
    const auto rank = std::ranges::find(ranks_, pid, &Rank::pid);
    if (rank == ranks_.end() || !rank->running) continue;  // A rank's orphan.
    rank->running = false;
    if (status != 0) failures_.push_back({static_cast<int>(rank - ranks_.begin()), status});
  }
}

void Supervisor::Advance() {
  const Nanoseconds now = Now();
  CloseOrphanedSources();
  if (all_gone_) DrainLeftovers();
  const bool running = CountRunning() > 0;
  switch (phase_) {
    case Phase::kRunning:
      if (!failures_.empty()) {
        phase_ = Phase::kJudging;
        phase_deadline_ = running ? now + kJudgingTime : now;
      } else if (now >= job_deadline_ && !all_gone_) {
        Say("the job ran longer than " + std::to_string(arguments_.timeout_s) + " s; ending all ranks");
        exit_status_ = kExitTimeout;
        BeginEnding();
      } else if (!running && !all_gone_) {
        BeginEnding();  // All ranks succeeded; what they left behind does not stay.
      }
      break;
    case Phase::kJudging:
      if (now >= phase_deadline_ || !running) Judge();
      break;
    case Phase::kEnding:
      if (all_gone_) {
        phase_deadline_ = kNoDeadline;
      } else if (now >= phase_deadline_) {
        BeginKilling();
      }
      break;
    case Phase::kKilling:
      if (now >= phase_deadline_) KeepKilling();
      break;
  }
}

// The first failure in time is the cause; but a rank that was killed is no follower, though it be noticed later. One
// that aborted may be: that is how an error that nobody handles ends a program.
void Supervisor::Judge() {
  const auto killed = std::ranges::find_if(failures_, [](const Failure& failure) {
    return WIFSIGNALED(failure.wait_status) && WTERMSIG(failure.wait_status) != SIGABRT;
  });
  const Failure& cause = killed == failures_.end() ? failures_.front() : *killed;
  const bool others = CountRunning() > 0;
  Say("rank " + std::to_string(cause.rank) + " (pid " + std::to_string(ranks_[cause.rank].pid) + ") " +
      DescribeEnd(cause.wait_status) + (others ? "; ending the other ranks" : ""));
  exit_status_ = ExitStatusOf(cause.wait_status);
  BeginEnding();
}

void Supervisor::BeginEnding() {
  phase_ = Phase::kEnding;
  phase_deadline_ = DeadlineAfter(kGraceTime);
  SignalDescendants(SIGTERM);
  SignalDescendants(SIGCONT);  // A stopped process takes no other signal.
}

void Supervisor::BeginKilling() {
  if (phase_ == Phase::kKilling) return;
  if (phase_ == Phase::kEnding && !interrupted_ && !all_gone_)
    Say("some processes did not end within 3 s; killing them");
  phase_ = Phase::kKilling;
  give_up_ = DeadlineAfter(kKillTime);
  KeepKilling();
}

void Supervisor::KeepKilling() {
  phase_deadline_ = DeadlineAfter(kKillInterval);
  SignalDescendants(SIGKILL);
  Reap();
  if (all_gone_) phase_deadline_ = kNoDeadline;
  if (all_gone_ || Now() < give_up_) return;
  Say("some processes cannot be killed");
  all_gone_ = true;
  give_up_ = DeadlineAfter(kDrainTime);
}

// Whose reader has gone gets what it would get without us: SIGPIPE or EPIPE at its next write.
void Supervisor::CloseOrphanedSources() {
  for (const auto& source : sources_) {
    if (source->sink()->broken()) source->Close();
  }
}

// With all writers gone the pipes hold their last words; an empty one is at its end even if a stranger keeps it open.
void Supervisor::DrainLeftovers() {
  for (const auto& source : sources_) {
    while (source->fd() >= 0 && !source->sink()->full()) {
      if (!source->ReadSome()) source->Close();
    }
  }
}

bool Supervisor::Finished() const {
  if (!all_gone_ || phase_ == Phase::kJudging || (phase_ == Phase::kRunning && !failures_.empty())) return false;
  if (Now() >= give_up_) return true;
  const bool read = std::ranges::all_of(sources_, [](const auto& source) { return source->fd() < 0; });
  return read && out_.empty() && err_.empty();
}

int Supervisor::CountRunning() const {
  return static_cast<int>(std::ranges::count_if(ranks_, [](const Rank& rank) { return rank.running; }));
}

void Supervisor::Say(const std::string& text) { err_.AddLine("annulus-run: ", text); }

}  // namespace annulus
