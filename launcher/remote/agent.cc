#include "launcher/remote/agent.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "launcher/job/exit_status.h"
#include "launcher/job/poll_timeout.h"
#include "launcher/local/binding.h"

namespace annulus {
namespace {

// Timeout until annulus-run has set the link timeout.
constexpr Nanoseconds kFirstTimeout = 60 * kSecond;

std::string ValueOf(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

}  // namespace

Agent::Agent(const GuardedContext& context, const char* const* environment)
    : context_(context),
      environment_(ReadVariables(environment)),
      pipe_(AgentPipe::Side::kAgent, STDIN_FILENO, STDOUT_FILENO),
      out_(kOutStream, &pipe_),
      err_(kErrStream, &pipe_),
      ranks_([this](const std::string& text) { pipe_.Send(AgentMessageKind::kNotice, text); }),
      liveness_(kFirstTimeout) {}

int Agent::Run() {
  if (!signals_.Open(context_)) return kExitCannotLaunch;
  pipe_.Send(AgentMessageKind::kHello, ValueOf(environment_, "SSH_CONNECTION"));
  while (!Finished()) {
    PollOnce();
    Advance();
  }
  return 0;
}

void Agent::PollOnce() {
  const auto writable_when = [](bool wanted, int fd) { return pollfd{wanted ? fd : -1, POLLOUT, 0}; };
  std::vector<pollfd> polled{
      {signals_.fd(), POLLIN, 0},
      {pipe_.in_fd(), POLLIN, 0},
      writable_when(pipe_.unsent() > 0, pipe_.out_fd()),
      writable_when(input_.pending(), input_.writer()),
      {handout_.fd(), POLLIN, 0},
  };
  const size_t first_source = polled.size();
  sources_.AddPolled(&polled);
  if (poll(polled.data(), polled.size(), PollTimeout(NextDeadline())) <= 0) return;
  if (polled[0].revents != 0) OnSignals();
  if (polled[1].revents != 0) pipe_.ReadSome();
  if (polled[2].revents != 0) pipe_.WriteSome();
  if (polled[3].revents != 0 && input_.WriteSome()) pipe_.Send(AgentMessageKind::kInputTaken);
  if (polled[4].revents != 0) handout_.Serve();
  sources_.OnPolled(polled.data() + first_source);
}

Deadline Agent::NextDeadline() const {
  if (pipe_.in_fd() < 0) return ranks_.deadline();
  return std::min(ranks_.deadline(), liveness_.next(pipe_.last_heard()));
}

void Agent::OnSignals() {
  while (const int signal = signals_.Next()) {
    if (getppid() != context_.guardian || ranks_.ending()) {
      ranks_.BeginKilling();
      continue;
    }
    Refuse(Status(Code::kAborted,
                  "annulus-run was stopped there by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")"),
           128 + signal);
    ranks_.BeginEnding();
  }
  Reap();
}

void Agent::Reap() {
  if (!first_rank_ && !ranks_.ending()) return;  // No rank has been started yet, so having none is not the end.
  for (const RankGroup::Ended& ended : ranks_.Reap()) {
    const int rank = *first_rank_ + ended.index;
    const int64_t blames = notes_.BlamedBy(rank);
    pipe_.Send(AgentMessageKind::kRankEnded, ByteWriter().I64(rank).I64(ended.wait_status).I64(blames).bytes());
  }
}

void Agent::Advance() {
  while (const std::optional<AgentMessage> message = pipe_.Next()) OnMessage(*message);
  if (pipe_.state() != AgentPipe::State::kOpen || Now() >= liveness_.LostAt(pipe_.last_heard())) LoseHead();
  if (liveness_.due()) {
    pipe_.Send(AgentMessageKind::kAlive);
    liveness_.SaidAlive();
  }
  sources_.CloseOrphaned();
  ranks_.Advance();
  Reap();  // After the last rank, no other event shows that nobody is left.
  bool flushed;
  do {
    if (ranks_.all_gone()) sources_.Drain();
    flushed = out_.Flush();
    flushed = err_.Flush() || flushed;
  } while (flushed && ranks_.all_gone());  // No event would show that there is more.
  ReportEnd();
  pipe_.WriteSome();
}

void Agent::ReportEnd() {
  if (!ranks_.ending() || !ranks_.all_gone()) return;
  if (said_ == Said::kNothing) {
    pipe_.Send(AgentMessageKind::kRanksGone);
    said_ = Said::kRanksGone;
  }
  // Output may still wait for credit, for as long as a reader takes.
  if (said_ == Said::kGone || !sources_.all_closed()) return;
  pipe_.Send(AgentMessageKind::kGone);
  said_ = Said::kGone;
}

bool Agent::Finished() const { return said_ == Said::kGone && (pipe_.unsent() == 0 || pipe_.out_fd() < 0); }

void Agent::LoseHead() {
  pipe_.Close();
  out_.Break();
  err_.Break();
  ranks_.BeginEnding();
}

void Agent::OnMessage(const AgentMessage& message) {
  switch (message.kind) {
    case AgentMessageKind::kConfigure:
      return Configure(message.content);
    case AgentMessageKind::kReserve:
      return Reserve(message.content);
    case AgentMessageKind::kStart:
      return Start(message.content);
    case AgentMessageKind::kInput:
      return OnInput(message.content);
    case AgentMessageKind::kCredit:
      return Grant(message.content);
    case AgentMessageKind::kDropOutput:
      return DropOutput(message.content);
    case AgentMessageKind::kEnd:
      return ranks_.BeginEnding();
    case AgentMessageKind::kKill:
      ranks_.set_quiet();
      return ranks_.BeginKilling();
    case AgentMessageKind::kAlive:
      return;
    default:
      return LoseHead();  // Not a message for an agent.
  }
}

void Agent::Configure(const std::string& content) {
  ByteReader reader(content);
  const int64_t timeout_ms = reader.I64();
  if (!reader.done() || timeout_ms < 1 || timeout_ms > kMaxLinkTimeoutMs) return LoseHead();
  liveness_.SetTimeout(timeout_ms * kMillisecond);
}

void Agent::Reserve(const std::string& content) {
  const Status status = port_.Reserve(content);
  if (!status.ok()) return Refuse(status, kExitCannotLaunch);
  pipe_.Send(AgentMessageKind::kReserved, ByteWriter().I64(port_.port()).bytes());
}

void Agent::Start(const std::string& content) {
  StartOrder order;
  if (first_rank_ || ranks_.ending() || !Decode(content, &order)) return LoseHead();
  first_rank_ = order.first_rank;
  if (chdir(order.folder.c_str()) != 0) {
    Refuse(Status::System("cannot work in " + order.folder + ", as annulus-run does where it was started", errno),
           kExitCannotLaunch);
    return ranks_.BeginKilling();
  }
  const Status status = StartRanks(order);
  if (!status.ok()) {
    Refuse(status, ExitStatusOf(status));
    return ranks_.BeginKilling();
  }
  ByteWriter pids;
  for (int index = 0; index < order.nranks; ++index) pids.I64(ranks_.pid(index));
  pipe_.Send(AgentMessageKind::kStarted, pids.bytes());
}

Status Agent::StartRanks(const StartOrder& order) {
  ChildProgram program;
  program.command = order.command;
  program.signal_mask = context_.original;
  RaiseOpenFiles();
  Variables variables = environment_;
  variables.erase(PortHandout::kVariable);  // Set by an annulus-run around this one.
  for (const auto& [name, value] : order.variables) variables[name] = value;
  if (order.first_rank == 0 && !input_.Open()) return Status::System("cannot make a pipe", errno);
  if (order.first_rank == 0) ANNULUS_RETURN_IF_ERROR(handout_.Open(port_.listener()));
  const std::vector<CpuMask> masks = BindRanks(order.bind, order.nranks);
  for (int index = 0; index < order.nranks; ++index) {
    program.cpus = masks[index];
    const int rank = order.first_rank + index;
    program.input_fd = rank == 0 ? input_.reader() : ChildProgram::kNoInput;
    program.environment = RankEnvironment(variables, {rank, order.size, index, order.nranks});
    notes_.AddVariable(rank, &program.environment);
    if (rank == 0) program.environment.push_back(handout_.variable());
    ChildProcess process;
    ANNULUS_RETURN_IF_ERROR(ranks_.Start(program, &process));
    std::optional<std::string> prefix;
    if (order.prefix) prefix = "[" + std::to_string(rank) + "] ";
    sources_.Add(process.out_fd, &out_, prefix);
    sources_.Add(process.err_fd, &err_, prefix);
  }
  input_.CloseReader();
  return {};
}

void Agent::OnInput(const std::string& content) {
  input_.Add(content);
  if (content.empty()) input_.End();
  if (!input_.pending()) pipe_.Send(AgentMessageKind::kInputTaken);  // Nobody reads the input.
}

void Agent::Grant(const std::string& content) {
  ByteReader reader(content);
  const int64_t stream = reader.I64();
  const int64_t bytes = reader.I64();
  if (!reader.done() || bytes < 0 || bytes > AgentOutput::kWindowBytes) return LoseHead();
  (stream == kOutStream ? out_ : err_).Grant(bytes);
}

void Agent::DropOutput(const std::string& content) {
  ByteReader reader(content);
  (reader.I64() == kOutStream ? out_ : err_).Break();
}

void Agent::Refuse(const Status& status, int exit_status) {
  pipe_.Send(AgentMessageKind::kRefused, ByteWriter().I64(exit_status).LongText(status.message()).bytes());
}

}  // namespace annulus
