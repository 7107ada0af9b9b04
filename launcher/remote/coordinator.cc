#include "launcher/remote/coordinator.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/bytes.h"
#include "base/parse.h"
#include "launcher/job/exit_status.h"
#include "launcher/job/poll_timeout.h"
#include "launcher/remote/agent_command.h"
#include "launcher/remote/rendezvous_host.h"
#include "launcher/remote/start_order.h"

namespace annulus {
namespace {

// A rank that loses a peer notices it within milliseconds and exits too. The report of its host may arrive before that
// of the peer's host, by as much as ssh delays the latter.
constexpr Nanoseconds kJudgingTime = 300 * kMillisecond;
// Agents take up to 13 s: the ranks' grace time, then time to kill them. The rest is for ssh.
constexpr Nanoseconds kEndTime = 18 * kSecond;
constexpr Nanoseconds kKillTime = 12 * kSecond;

}  // namespace

Coordinator::Coordinator(const RunArguments& arguments, const Job& job, const GuardedContext& context)
    : arguments_(arguments), job_(job), context_(context), ranks_(arguments.nranks), judgement_(kJudgingTime) {}

int Coordinator::Run() {
  if (!signals_.Open(context_)) return kExitCannotLaunch;
  OpenLinks();
  while (!Finished()) {
    PollOnce();
    AdvanceLinks();
    AdvancePhase();
    if (const std::string trouble = console_.TakeTrouble(); !trouble.empty()) Say(trouble);
  }
  return console_.ExitStatus(exit_status_);
}

void Coordinator::OpenLinks() {
  ChildProgram program;
  program.signal_mask = context_.original;
  RaiseOpenFiles();
  program.environment = CallersEnvironment();
  if (arguments_.timeout_s > 0) job_deadline_ = DeadlineAfter(arguments_.timeout_s * kSecond);
  for (const Placement& placement : arguments_.placements) {
    program.command = AgentCommand(arguments_, placement);
    auto link =
        std::make_unique<HostLink>(placement, arguments_.link_timeout_s * kSecond, console_.out(), console_.err());
    const Status status = link->Open(program);
    if (!status.ok()) return GiveUp(ExitStatusOf(status), placement.host + ": " + status.message());
    links_.push_back(std::move(link));
  }
}

void Coordinator::PollOnce() {
  std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}, input_.Polled()};
  const size_t first_stream = polled.size();
  console_.AddPolled(&polled);
  const size_t first_link = polled.size();
  for (const auto& link : links_) link->AddPolled(&polled);
  if (poll(polled.data(), polled.size(), PollTimeout(NextDeadline())) <= 0) return;
  if (polled[0].revents != 0) OnSignals();
  console_.OnPolled(&polled[first_stream]);
  if (const auto input = input_.Read(polled[1].revents)) links_.front()->Send(AgentMessageKind::kInput, *input);
  for (size_t i = 0; i < links_.size(); ++i) links_[i]->OnPolled(&polled[first_link + i * HostLink::kPolled]);
}

Deadline Coordinator::NextDeadline() const {
  Deadline next = std::min({phase_deadline_, drain_.deadline(), console_.deadline()});
  if (phase_ == Phase::kJudging) next = std::min(next, judgement_.deadline());
  if (phase_ <= Phase::kRunning) next = std::min(next, job_deadline_);
  for (const auto& link : links_) next = std::min(next, link->deadline());
  return next;
}

void Coordinator::OnSignals() {
  while (const int signal = signals_.Next()) Interrupt(signal);
  Reap();
}

void Coordinator::Interrupt(int signal) {
  drain_.Hurry();
  const bool orphaned = getppid() != context_.guardian;
  const bool gone = phase_ >= Phase::kEnding && AllRanksGone();
  if (orphaned || gone) {
    for (const auto& link : links_) link->Cut();
  }
  if (gone) {
    drain_.Stop();  // Only output is left, which the user does not want.
    if (exit_status_ == 0) exit_status_ = 128 + signal;
  } else if (orphaned) {
    Say("annulus-run itself was killed; ending all ranks");
    BeginKilling();
  } else if (phase_ >= Phase::kEnding) {
    BeginKilling();  // The user asked twice.
  } else {
    GiveUp(128 + signal,
           "stopped by signal " + std::to_string(signal) + " (" + strsignal(signal) + "); ending all ranks");
  }
}

void Coordinator::Reap() {
  while (true) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) return;
    const auto link = std::ranges::find_if(links_, [&](const auto& each) { return each->pid() == pid; });
    if (link != links_.end()) (*link)->OnExit(status);
  }
}

void Coordinator::AdvanceLinks() {
  for (size_t i = 0; i < links_.size(); ++i) {
    HostLink* link = links_[i].get();
    while (const std::optional<AgentMessage> message = link->Next()) OnMessage(link, *message);
    link->Advance();
    for (const std::string& line : link->TakeWords()) Say(link->host() + ": " + line);
    const std::string trouble = link->Trouble();
    if (trouble.empty()) continue;
    link->Cut();
    Fail({.host = link->host(), .text = trouble});
  }
}

void Coordinator::OnMessage(HostLink* link, const AgentMessage& message) {
  switch (message.kind) {
    case AgentMessageKind::kHello:
      return OnHello(link, message.content);
    case AgentMessageKind::kReserved:
      return OnReserved(message.content);
    case AgentMessageKind::kRefused:
      return OnRefused(*link, message.content);
    case AgentMessageKind::kStarted:
      return OnStarted(*link, message.content);
    case AgentMessageKind::kRankEnded:
      return OnRankEnded(*link, message.content);
    case AgentMessageKind::kInputTaken:
      return input_.Want();
    case AgentMessageKind::kNotice:
      return Say(link->host() + ": " + message.content);
    case AgentMessageKind::kRanksGone:
      return link->set_ranks_gone();
    case AgentMessageKind::kGone:
      return link->set_gone();
    default:
      link->set_nonsense();  // Not a message for the coordinator.
  }
}

void Coordinator::OnHello(HostLink* link, const std::string& content) {
  link->OnAnswer(content);
  if (phase_ != Phase::kConnecting) return;
  if (std::ranges::all_of(links_, [](const auto& each) { return each->ready(); })) ReserveRendezvous();
}

void Coordinator::ReserveRendezvous() {
  rendezvous_host_ = arguments_.rendezvous_host;
  if (rendezvous_host_.empty()) {
    std::vector<std::string> ssh_connections;
    // The agent on this host sees the connection, if any, through which its user logged in here.
    for (const auto& link : links_) {
      ssh_connections.push_back(link->placement().here ? std::string() : link->ssh_connection());
    }
    const Status status = FindRendezvousHost(arguments_.placements, ssh_connections, &rendezvous_host_);
    if (!status.ok()) return GiveUp(kExitUsage, status.message());
  }
  phase_ = Phase::kReserving;
  links_.front()->Send(AgentMessageKind::kReserve, rendezvous_host_);
}

void Coordinator::OnReserved(const std::string& content) {
  if (phase_ != Phase::kReserving) return;
  StartRanks(FormatAddress(rendezvous_host_, static_cast<int>(ByteReader(content).I64())));
}

void Coordinator::StartRanks(const std::string& rendezvous) {
  std::error_code error;
  StartOrder order;
  order.folder = std::filesystem::current_path(error).string();
  if (error) return GiveUp(kExitCannotLaunch, "the working directory is gone: " + error.message());
  order.size = arguments_.nranks;
  order.prefix = arguments_.prefix;
  order.bind = arguments_.bind;
  order.command = arguments_.command;
  order.variables = job_.variables();
  order.variables["ANNULUS_RENDEZVOUS"] = rendezvous;
  phase_ = Phase::kRunning;
  for (const auto& link : links_) {
    order.first_rank = link->placement().first_rank;
    order.nranks = link->placement().nranks;
    link->Send(AgentMessageKind::kStart, Encode(order));
  }
}

void Coordinator::OnRefused(const HostLink& link, const std::string& content) {
  ByteReader reader(content);
  const int status = static_cast<int>(reader.I64());
  if (phase_ < Phase::kEnding) GiveUp(status, link.host() + ": " + reader.LongText());
}

void Coordinator::OnStarted(const HostLink& link, const std::string& content) {
  ByteReader reader(content);
  for (int index = 0; index < link.placement().nranks; ++index) {
    ranks_[link.placement().first_rank + index].pid = static_cast<pid_t>(reader.I64());
  }
  if (link.placement().first_rank == 0) input_.Want();
}

void Coordinator::OnRankEnded(const HostLink& link, const std::string& content) {
  ByteReader reader(content);
  const int64_t rank = reader.I64();
  const int wait_status = static_cast<int>(reader.I64());
  const int64_t blames = reader.I64();
  if (rank < link.placement().first_rank || rank >= link.placement().first_rank + link.placement().nranks) return;
  ranks_[rank].running = false;
  if (wait_status == 0) return;
  Fail({.rank = static_cast<int>(rank),
        .pid = ranks_[rank].pid,
        .wait_status = wait_status,
        .host = link.host(),
        .blames = blames < arguments_.nranks ? static_cast<int>(blames) : Failure::kAnother});
}

void Coordinator::Fail(const Failure& failure) {
  const bool lost = failure.rank == Failure::kWholeHost;
  if (phase_ < Phase::kRunning) {
    GiveUp(ExitStatusOf(failure), Describe(failure));
  } else if (phase_ <= Phase::kJudging) {
    judgement_.Add(failure);
    phase_ = Phase::kJudging;
  } else if (lost) {
    Say(Describe(failure));
    if (exit_status_ == 0) exit_status_ = kExitHostLost;
  }
}

void Coordinator::Judge() {
  const Failure& cause = judgement_.cause();
  GiveUp(ExitStatusOf(cause), Describe(cause) + (CountRunning() > 0 ? "; ending the other ranks" : ""));
}

void Coordinator::GiveUp(int status, const std::string& text) {
  exit_status_ = status;
  Say(text);
  BeginEnding();
}

void Coordinator::BeginEnding() {
  phase_ = Phase::kEnding;
  phase_deadline_ = DeadlineAfter(kEndTime);
  for (const auto& link : links_) {
    // A host that has not answered yet has no ranks.
    if (link->ready()) {
      link->Send(AgentMessageKind::kEnd);
    } else {
      link->Cut();
    }
  }
}

void Coordinator::BeginKilling() {
  if (phase_ == Phase::kKilling) return;
  phase_ = Phase::kKilling;
  phase_deadline_ = DeadlineAfter(kKillTime);
  for (const auto& link : links_) link->Send(AgentMessageKind::kKill);
}

void Coordinator::AdvancePhase() {
  const Nanoseconds now = Now();
  if (phase_ <= Phase::kRunning && now >= job_deadline_) {
    GiveUp(kExitTimeout, "the job ran longer than " + std::to_string(arguments_.timeout_s) + " s; ending all ranks");
  } else if (phase_ == Phase::kRunning && CountRunning() == 0) {
    BeginEnding();  // All ranks succeeded; end the processes that they left behind.
  } else if (phase_ == Phase::kJudging) {
    const auto is_running = [this](int rank) { return ranks_[rank].running; };
    if (judgement_.Due(CountRunning() > 0, is_running)) Judge();
  } else if (phase_ >= Phase::kEnding) {
    AdvanceEnd();
  }
}

void Coordinator::AdvanceEnd() {
  if (!AllRanksGone() && Now() < phase_deadline_) return;
  phase_deadline_ = kNoDeadline;
  for (const auto& link : links_) {
    if (link->ranks_gone()) continue;
    Say(link->host() + ": did not say that all its processes have ended");
    link->Cut();
  }
  // The rest of the output arrives when it can be written. Without an interrupt this has no deadline, as in a job on
  // one host; links that break meanwhile are noticed as before.
  drain_.Begin();
  if (Now() < drain_.deadline() || AllClosed()) return;
  if (console_.full()) {
    for (const auto& link : links_) link->Cut();
  }
  drain_.Restart();
}

bool Coordinator::AllClosed() const {
  return std::ranges::all_of(links_, [](const auto& link) { return link->closed(); });
}

bool Coordinator::AllRanksGone() const {
  return std::ranges::all_of(links_, [](const auto& link) { return link->ranks_gone(); });
}

bool Coordinator::Finished() const {
  if (phase_ < Phase::kEnding || !AllClosed()) return false;
  return Now() >= drain_.deadline() || console_.empty();
}

int Coordinator::CountRunning() const { return static_cast<int>(std::ranges::count_if(ranks_, &Rank::running)); }

}  // namespace annulus
