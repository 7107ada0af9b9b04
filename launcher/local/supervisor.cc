#include "launcher/local/supervisor.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "launcher/job/exit_status.h"
#include "launcher/job/poll_timeout.h"
#include "launcher/local/binding.h"
#include "launcher/local/child_process.h"

namespace annulus {
namespace {

// A rank that loses a peer notices it within milliseconds and exits too, and may be reaped first on a busy machine.
constexpr Nanoseconds kJudgingTime = 50 * kMillisecond;

}  // namespace

Supervisor::Supervisor(const RunArguments& arguments, const Job& job, const GuardedContext& context)
    : arguments_(arguments),
      job_(job),
      context_(context),
      watch_(console_.err(), STDERR_FILENO, arguments.prefix),
      ranks_([this](const std::string& text) { Say(text); }),
      judgement_(kJudgingTime) {}

int Supervisor::Run() {
  if (!signals_.Open(context_)) return kExitCannotLaunch;
  StartRanks();
  while (!Finished()) {
    PollOnce();
    Advance();
  }
  return console_.ExitStatus(exit_status_);
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
    sources_.Add(process.out_fd, console_.out(), watch_.LinePrefix(console_.out()->fd()) + prefix);
    sources_.Add(process.err_fd, console_.err(), watch_.LinePrefix(console_.err()->fd()) + prefix);
  }
}

void Supervisor::PollOnce() {
  std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}, {port_.fd(), POLLIN, 0}};
  const size_t first_stream = polled.size();
  console_.AddPolled(&polled);
  sources_.AddPolled(&polled);
  if (poll(polled.data(), polled.size(), PollTimeoutMs()) <= 0) return;
  if (polled[0].revents != 0) OnSignals();
  if (polled[1].revents != 0) port_.Serve();
  console_.OnPolled(&polled[first_stream]);
  sources_.OnPolled(polled.data() + first_stream + Console::kPolled);
}

int Supervisor::PollTimeoutMs() const {
  Deadline next = std::min({ranks_.deadline(), drain_.deadline(), watch_.next(), console_.deadline()});
  if (Judges()) {
    next = std::min(next, judgement_.deadline());
  } else if (!ranks_.ending() && !ranks_.all_gone()) {
    next = std::min(next, job_deadline_);
  }
  return PollTimeout(next);
}

void Supervisor::OnSignals() {
  while (const int signal = signals_.Next()) Interrupt(signal);
  // After the interrupts: an interrupt from the terminal reaches the ranks too, and their deaths are then not failures.
  Reap();
}

void Supervisor::Interrupt(int signal) {
  drain_.Hurry();
  ranks_.set_quiet();
  if (ranks_.all_gone()) {
    drain_.Stop();  // Only output is left, which the user does not want.
    if (exit_status_ == 0) exit_status_ = 128 + signal;
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
    judgement_.Add({.rank = ended.index,
                    .pid = ranks_.pid(ended.index),
                    .wait_status = ended.wait_status,
                    .blames = notes_.BlamedBy(ended.index)});
  }
}

void Supervisor::Advance() {
  if (const std::string trouble = console_.TakeTrouble(); !trouble.empty()) Say(trouble);
  sources_.CloseOrphaned();
  watch_.Advance();
  if (!ranks_.ending()) AdvanceRunning();
  if (ranks_.ending() || ranks_.all_gone()) watch_.End();
  ranks_.Advance();
  if (!ranks_.all_gone()) return;
  if (ranks_.gave_up()) drain_.Hurry();
  drain_.Begin();
  sources_.Drain();
}

void Supervisor::AdvanceRunning() {
  const bool running = ranks_.running() > 0;
  if (Judges()) {
    const auto is_running = [this](int rank) { return rank < arguments_.nranks && ranks_.is_running(rank); };
    if (judgement_.Due(running, is_running)) Judge();
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

void Supervisor::Judge() {
  const Failure& cause = judgement_.cause();
  Say(Describe(cause) + (ranks_.running() > 0 ? "; ending the other ranks" : ""));
  exit_status_ = ExitStatusOf(cause);
  ranks_.BeginEnding();
}

bool Supervisor::Finished() const {
  if (!ranks_.all_gone() || Judges()) return false;
  if (Now() >= drain_.deadline()) return true;
  return sources_.all_closed() && console_.empty();
}

void Supervisor::Say(const std::string& text) {
  Sink* const err = console_.err();
  err->AddLine(watch_.LinePrefix(err->fd()) + "annulus-run: ", text);
}

}  // namespace annulus
