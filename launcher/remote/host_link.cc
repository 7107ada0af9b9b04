#include "launcher/remote/host_link.h"

#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "launcher/job/exit_status.h"
#include "launcher/remote/framed_output.h"

namespace annulus {
namespace {

// Time for the agent to answer: name lookup, a slow login, the start of another program.
constexpr Nanoseconds kConnectTime = 60 * kSecond;
// Credit is granted in portions that are worth a frame.
constexpr int64_t kCreditPortion = FramedOutput::kWindowBytes / 4;

}  // namespace

HostLink::HostLink(const Placement& placement, Nanoseconds timeout, Sink* out, Sink* err)
    : placement_(placement), timeout_(timeout), out_{out}, err_{err}, liveness_(timeout) {}

Status HostLink::Open(ChildProgram program) {
  int output = -1;
  int input = -1;
  ANNULUS_RETURN_IF_ERROR(process_.Start(std::move(program), &output, &input));
  channel_ = std::make_unique<Channel>(Channel::Side::kHead, output, input);
  liveness_.SetTimeout(timeout_);
  Send(FrameKind::kConfigure, ByteWriter().I64(timeout_ / kMillisecond).bytes());
  return {};
}

void HostLink::AddPolled(std::vector<pollfd>* polled) const {
  polled->push_back({channel_->in_fd(), POLLIN, 0});
  polled->push_back({channel_->unsent() > 0 ? channel_->out_fd() : -1, POLLOUT, 0});
  polled->push_back(process_.Polled());
}

void HostLink::TakePolled(const pollfd* polled) {
  if (polled[0].revents != 0) channel_->ReadSome();
  if (polled[1].revents != 0) channel_->WriteSome();
  if (polled[2].revents != 0) process_.ReadErrors();
}

void HostLink::Send(FrameKind kind, std::string_view content) {
  channel_->Send(kind, content);
  channel_->WriteSome();
}

std::optional<ChannelFrame> HostLink::Next() {
  while (std::optional<ChannelFrame> frame = channel_->Next()) {
    if (frame->kind == FrameKind::kAlive) continue;
    if (frame->kind != FrameKind::kOutput) return frame;
    if (!PassOn(*frame)) break;
  }
  return std::nullopt;
}

bool HostLink::PassOn(const ChannelFrame& frame) {
  ByteReader reader(frame.content);
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
    Send(FrameKind::kDropOutput, ByteWriter().I64(stream).bytes());
  }
  if (relay->sink->full() || relay->owed < kCreditPortion) return;
  Send(FrameKind::kCredit, ByteWriter().I64(stream).I64(relay->owed).bytes());
  relay->owed = 0;
}

void HostLink::Advance() {
  if (channel_->in_fd() < 0) {
    if (!process_.exit()) channel_->CloseOut();
    return process_.AwaitExit();
  }
  if (!ready()) {
    silent_ = silent_ || Now() >= channel_->last_heard() + kConnectTime;
    return;
  }
  GrantCredit(kOutStream, &out_);
  GrantCredit(kErrStream, &err_);
  silent_ = silent_ || Now() >= liveness_.LostAt(channel_->last_heard());
  if (!liveness_.due()) return;
  Send(FrameKind::kAlive);
  liveness_.SaidAlive();
}

Deadline HostLink::deadline() const {
  if (channel_->in_fd() < 0 || silent_) return process_.deadline();
  if (!ready()) return channel_->last_heard() + kConnectTime;
  return liveness_.next(channel_->last_heard());
}

void HostLink::TakeExit(int wait_status) {
  // Everything that it wrote has arrived by now. Another process that keeps the pipe open has nothing to report.
  while (channel_->ReadSome()) {
  }
  channel_->Close();
  process_.TakeExit(wait_status);
}

std::string HostLink::Trouble() const {
  if (gone_ || cut_) return "";
  const std::string seconds = std::to_string((ready() ? timeout_ : kConnectTime) / kSecond) + " s";
  if (silent_)
    return ready() ? "nothing was heard of it for " + seconds + "; the connection is taken for lost"
                   : "no answer within " + seconds + " (" + process_.LastLine() + ")";
  if (nonsense_ || channel_->state() == Channel::State::kNonsense) return "what it sends is not annulus-run's";
  if (channel_->state() == Channel::State::kWrongVersion) return "annulus-run there is of another version than here";
  if (!closed()) return "";
  if (ready()) return "the connection broke" + process_.DescribeEnd() + "; its ranks end there by themselves";
  const int status = WIFEXITED(*process_.exit()) ? WEXITSTATUS(*process_.exit()) : -1;
  if (status == kExitHostLost) return "ssh failed: " + process_.LastLine();
  if (status == kExitNotFound || status == kExitCannotExecute) {
    return "annulus-run cannot be run there: " + process_.LastLine() + " (--remote-path tells where it is)";
  }
  return "annulus-run does not answer there" + process_.DescribeEnd();
}

void HostLink::Cut() {
  cut_ = true;
  channel_->Close();
  process_.Kill();
}

std::vector<std::string> HostLink::TakeWords() { return ready() ? process_.TakeLines() : std::vector<std::string>(); }

}  // namespace annulus
