#include "launcher/remote/host_link.h"

#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "launcher/job/exit_status.h"
#include "launcher/remote/agent_output.h"

namespace annulus {
namespace {

// Time for the agent to answer: name lookup, a slow login, the start of another program.
constexpr Nanoseconds kConnectTime = 60 * kSecond;
// Credit is granted in portions that are worth a message.
constexpr int64_t kCreditPortion = AgentOutput::kWindowBytes / 4;

}  // namespace

HostLink::HostLink(const Placement& placement, Nanoseconds timeout, Sink* out, Sink* err)
    : placement_(placement), timeout_(timeout), out_{out}, err_{err}, liveness_(timeout) {}

Status HostLink::Open(ChildProgram program) {
  int output = -1;
  int input = -1;
  ANNULUS_RETURN_IF_ERROR(process_.Start(std::move(program), &output, &input));
  pipe_ = std::make_unique<AgentPipe>(AgentPipe::Side::kHead, output, input);
  liveness_.SetTimeout(timeout_);
  Send(AgentMessageKind::kConfigure, ByteWriter().I64(timeout_ / kMillisecond).bytes());
  return {};
}

void HostLink::AddPolled(std::vector<pollfd>* polled) const {
  polled->push_back({pipe_->in_fd(), POLLIN, 0});
  polled->push_back({pipe_->unsent() > 0 ? pipe_->out_fd() : -1, POLLOUT, 0});
  polled->push_back(process_.Polled());
}

void HostLink::OnPolled(const pollfd* polled) {
  if (polled[0].revents != 0) pipe_->ReadSome();
  if (polled[1].revents != 0) pipe_->WriteSome();
  if (polled[2].revents != 0) process_.ReadErrors();
}

void HostLink::Send(AgentMessageKind kind, std::string_view content) {
  pipe_->Send(kind, content);
  pipe_->WriteSome();
}

std::optional<AgentMessage> HostLink::Next() {
  while (std::optional<AgentMessage> message = pipe_->Next()) {
    if (message->kind == AgentMessageKind::kAlive) continue;
    if (message->kind != AgentMessageKind::kOutput) return message;
    if (!PassOn(*message)) break;
  }
  return std::nullopt;
}

bool HostLink::PassOn(const AgentMessage& message) {
  ByteReader reader(message.content);
  const int64_t stream = reader.I64();
  const std::string text = reader.LongText();
  nonsense_ = nonsense_ || !reader.done() || (stream != kOutStream && stream != kErrStream);
  if (nonsense_) return false;
  Relay& relay = stream == kOutStream ? out_ : err_;
  relay.sink->AddBytes(text);
  relay.owed += static_cast<int64_t>(text.size());
  return true;
}

void HostLink::GrantCredit(int stream, Relay* relay) {
  if (relay->sink->broken() && !relay->dropped) {
    relay->dropped = true;
    Send(AgentMessageKind::kDropOutput, ByteWriter().I64(stream).bytes());
  }
  if (relay->sink->full()) return;
  while (relay->owed >= kCreditPortion) {
    const int64_t granted = std::min(relay->owed, AgentOutput::kWindowBytes);
    Send(AgentMessageKind::kCredit, ByteWriter().I64(stream).I64(granted).bytes());
    relay->owed -= granted;
  }
}

void HostLink::Advance() {
  if (pipe_->in_fd() < 0 || gone_) {
    if (!process_.exit()) pipe_->CloseOut();
    return process_.AwaitExit();
  }
  if (!ready()) {
    silent_ = silent_ || Now() >= pipe_->last_heard() + kConnectTime;
    return;
  }
  GrantCredit(kOutStream, &out_);
  GrantCredit(kErrStream, &err_);
  silent_ = silent_ || Now() >= liveness_.LostAt(pipe_->last_heard());
  if (!liveness_.due()) return;
  Send(AgentMessageKind::kAlive);
  liveness_.SaidAlive();
}

Deadline HostLink::deadline() const {
  if (pipe_->in_fd() < 0 || gone_ || silent_) return process_.deadline();
  if (!ready()) return pipe_->last_heard() + kConnectTime;
  return liveness_.next(pipe_->last_heard());
}

void HostLink::OnExit(int wait_status) {
  // Everything that it wrote has arrived by now. Another process that keeps the pipe open has nothing to report.
  while (pipe_->ReadSome()) {
  }
  pipe_->Close();
  process_.OnExit(wait_status);
}

std::string HostLink::Trouble() const {
  if (gone_ || cut_) return "";
  const std::string seconds = std::to_string((ready() ? timeout_ : kConnectTime) / kSecond) + " s";
  if (silent_)
    return ready() ? "nothing was heard of it for " + seconds + "; the connection is taken for lost"
                   : "no answer within " + seconds + process_.LastLine(" (", ")");
  if (nonsense_ || pipe_->state() == AgentPipe::State::kNonsense) return "what it sends is not annulus-run's";
  if (pipe_->state() == AgentPipe::State::kWrongVersion) return "annulus-run there is of another version than here";
  if (!closed()) return "";
  if (ready()) {
    return "the connection broke" + process_.DescribeEnd() +
           (ranks_gone_ ? "; the rest of its ranks' output is lost" : "; its ranks end there by themselves");
  }
  const int status = WIFEXITED(*process_.exit()) ? WEXITSTATUS(*process_.exit()) : -1;
  if (status == kExitHostLost) return process_.name() + " failed" + process_.LastLine(": ");
  if (status == kExitNotFound || status == kExitCannotExecute) {
    return "annulus-run cannot be run there" + process_.LastLine(": ") + " (--remote-path tells where it is)";
  }
  return "annulus-run does not answer there" + process_.DescribeEnd();
}

void HostLink::Cut() {
  cut_ = true;
  pipe_->Close();
  process_.Kill();
}

std::vector<std::string> HostLink::TakeWords() { return ready() ? process_.TakeLines() : std::vector<std::string>(); }

}  // namespace annulus
