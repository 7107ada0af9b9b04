#include "launcher/local/supervisor.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "launcher/job/exit_status.h"
#include "launcher/job/poll_timeout.h"
#include "launcher/local/binding.h"
#include "launcher/local/child_process.h"

namespace annulus {
namespace {

// A rank that loses a peer notices it within milliseconds and exits too, and may be reaped first on a busy machine.
constexpr Nanoseconds kJudgingTime = 50 * kMillisecond;
constexpr Nanoseconds kDrainTime = 1 * kSecond;

}  // namespace

Supervisor::Supervisor(const RunArguments& arguments, const Job& job, const GuardedContext& context)
    : arguments_(arguments),
      job_(job),
      context_(context),
      out_(STDOUT_FILENO),
      err_(STDERR_FILENO),
      watch_(&err_, STDERR_FILENO, arguments.prefix),
      ranks_([this](const std::string& text) { Say(text); }) {}

Supervisor::~Supervisor() {
  if (signal_fd_ >= 0) close(signal_fd_);
}

int Supervisor::Run() {
  signal_fd_ = OpenSignals(context_);
  if (signal_fd_ < 0) return kExitCannotLaunch;
  StartRanks();
  while (!Finished()) {
    PollOnce();
    Advance();
  }
  return exit_status_;
}

void Supervisor::StartRanks() {
  ChildProgram program;
  program.command = arguments_.command;
  program.capture = arguments_.prefix;
  program.signal_mask = context_.original;
  RaiseOpenFiles();
  if (arguments_.timeout_s > 0) job_deadline_ = DeadlineAfter(arguments_.timeout_s * kSecond);
  Status prepared = port_.Open(job_.listener());
  if (prepared.ok() && arguments_.watch) prepared = watch_.Begin(arguments_.nranks);
  if (!prepared.ok()) {
    Say(prepared.message());
    exit_status_ = ExitStatusOf(prepared);
    ranks_.BeginKilling();
    return;
  }
  const std::vector<CpuMask> masks = BindRanks(arguments_.bind, arguments_.nranks);
  for (int rank = 0; rank < arguments_.nranks; ++rank) {
    program.cpus = masks[rank];
    program.input_fd = rank == 0 ? STDIN_FILENO : ChildProgram::kNoInput;
    program.environment = job_.EnvironmentOf(rank);
    notes_.AddVariable(rank, &program.environment);
    if (rank == 0) program.environment.push_back(port_.variable());
    if (arguments_.watch) program.environment.push_back(watch_.VariableOf(rank));
    ChildProcess process;
    const Status status = ranks_.Start(program, &process);
    if (!status.ok()) {
      Say(status.message());
      exit_status_ = ExitStatusOf(status);
      ranks_.BeginKilling();
      return;
    }
    if (!arguments_.prefix) continue;
    const std::string prefix = "[" + std::to_string(rank) + "] ";
    sources_.push_back(std::make_unique<LineSource>(process.out_fd, &out_, watch_.LinePrefix(out_.fd()) + prefix));
    sources_.push_back(std::make_unique<LineSource>(process.err_fd, &err_, watch_.LinePrefix(err_.fd()) + prefix));
  }
}

void Supervisor::PollOnce() {
  std::vector<pollfd> polled{{signal_fd_, POLLIN, 0}, out_.Polled(), err_.Polled(), {port_.fd(), POLLIN, 0}};
  for (const auto& source : sources_) polled.push_back({source->target()->full() ? -1 : source->fd(), POLLIN, 0});
  if (poll(polled.data(), polled.size(), PollTimeoutMs()) <= 0) return;
  if (polled[0].revents != 0) TakeSignals();
  out_.Take(polled[1].revents);
  err_.Take(polled[2].revents);
  if (polled[3].revents != 0) port_.Serve();
  size_t at = 4;
  for (const auto& source : sources_) {
    if (polled[at++].revents != 0) source->ReadSome();
  }
}

int Supervisor::PollTimeoutMs() const {
  Deadline next = std::min({ranks_.deadline(), judge_at_, drain_deadline_, watch_.next()});
  if (!judging_ && !ranks_.ending() && !ranks_.all_gone()) next = std::min(next, job_deadline_);
  return PollTimeout(next);
}

void Supervisor::TakeSignals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD) Interrupt(static_cast<int>(info.ssi_signo));
  }
  // After the interrupts: an interrupt from the terminal reaches the ranks too, and their deaths are then not failures.
  Reap();
}

void Supervisor::Interrupt(int signal) {
  interrupted_ = true;
  ranks_.set_quiet();
  judging_ = false;
  judge_at_ = kNoDeadline;
  if (ranks_.all_gone()) {
    drain_deadline_ = Now();  // Only output is left, and nobody reads it.
  } else if (getppid() != context_.guardian) {
    Say("annulus-run itself was killed; killing all ranks");
    ranks_.BeginKilling();
  } else if (ranks_.ending()) {
    ranks_.BeginKilling();  // The user asked twice.
  } else {
    exit_status_ = 128 + signal;
    Say("stopped by signal " + std::to_string(signal) + " (" + strsignal(signal) + "); ending all ranks");
    ranks_.BeginEnding();
  }
}

void Supervisor::Reap() {
  for (const RankGroup::Ended& ended : ranks_.Reap()) {
    if (ended.wait_status == 0) continue;
    failures_.push_back({.rank = ended.index,
                         .pid = ranks_.pid(ended.index),
                         .wait_status = ended.wait_status,
                         .blames = notes_.BlamedBy(ended.index)});
  }
}

void Supervisor::Advance() {
  CloseOrphanedSources();
  watch_.Advance();
  if (!ranks_.ending()) AdvanceRunning();
  if (ranks_.ending() || ranks_.all_gone()) watch_.End();
  ranks_.Advance();
  if (!ranks_.all_gone()) return;
  if (!draining_ && (interrupted_ || ranks_.gave_up())) drain_deadline_ = DeadlineAfter(kDrainTime);
  draining_ = true;
  for (const auto& source : sources_) source->Drain();
}

void Supervisor::AdvanceRunning() {
  const bool running = ranks_.running() > 0;
  if (judging_) {
    const bool awaits = AwaitsCulprit();
    if (!running || (awaiting_ && !awaits) || (Now() >= judge_at_ && (awaiting_ || !awaits))) return Judge();
    if (Now() < judge_at_) return;
    awaiting_ = true;
    judge_at_ = DeadlineAfter(kCulpritTime);
  } else if (!failures_.empty()) {
    judging_ = true;
    judge_at_ = running ? DeadlineAfter(kJudgingTime) : Now();
  } else if (ranks_.all_gone()) {
    return;
  } else if (Now() >= job_deadline_) {
    Say("the job ran longer than " + std::to_string(arguments_.timeout_s) + " s; ending all ranks");
    exit_status_ = kExitTimeout;
    ranks_.BeginEnding();
  } else if (!running) {
    ranks_.BeginEnding();  // All ranks succeeded; end the processes that they left behind.
  }
}

bool Supervisor::AwaitsCulprit() const {
  return annulus::AwaitsCulprit(failures_,
                                [this](int rank) { return rank < arguments_.nranks && ranks_.is_running(rank); });
}

void Supervisor::Judge() {
  const Failure& cause = FirstCause(failures_);
  Say(Describe(cause) + (ranks_.running() > 0 ? "; ending the other ranks" : ""));
  exit_status_ = ExitStatusOf(cause);
  judging_ = false;
  judge_at_ = kNoDeadline;
  ranks_.BeginEnding();
}

// A rank whose reader has gone gets what it would get without annulus-run: SIGPIPE or EPIPE at its next write.
void Supervisor::CloseOrphanedSources() {
  for (const auto& source : sources_) {
    if (source->target()->broken()) source->Close();
  }
}

bool Supervisor::Finished() const {
  if (!ranks_.all_gone() || judging_ || (!ranks_.ending() && !failures_.empty())) return false;
  if (Now() >= drain_deadline_) return true;
  const bool read = std::ranges::all_of(sources_, [](const auto& source) { return source->fd() < 0; });
  return read && out_.empty() && err_.empty();
}

void Supervisor::Say(const std::string& text) { err_.AddLine(watch_.LinePrefix(err_.fd()) + "annulus-run: ", text); }

}  // namespace annulus
