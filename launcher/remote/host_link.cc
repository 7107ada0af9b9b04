#include "launcher/remote/host_link.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>

#include "base/bytes.h"
#include "launcher/job/exit_status.h"
#include "launcher/remote/framed_output.h"

namespace annulus {
namespace {

// Time for the agent to answer: name lookup, a slow login, the start of another program.
constexpr Nanoseconds kConnectTime = 60 * kSecond;
// Time for ssh to end after the agent has ended.
constexpr Nanoseconds kExitTime = 5 * kSecond;
// Credit is granted in portions that are worth a frame.
constexpr int64_t kCreditPortion = FramedOutput::kWindowBytes / 4;

}  // namespace

void HostLink::Words::AddBytes(std::string_view bytes) {
  text_.append(bytes);
  if (text_.size() > kMaxBytes) text_.erase(0, text_.size() - kMaxBytes / 2);
}

std::string HostLink::Words::Last() const {
  std::string last;
  std::istringstream lines(text_);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();  // ssh ends its own lines with a carriage return.
    if (!line.empty()) last = line;
  }
  return last;
}

std::vector<std::string> HostLink::Words::TakeLines() {
  std::vector<std::string> taken;
  std::istringstream lines(text_);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    taken.push_back(line);
  }
  text_.clear();
  return taken;
}

HostLink::HostLink(const Placement& placement, Nanoseconds timeout, Sink* out, Sink* err)
    : placement_(placement), timeout_(timeout), out_(out), err_(err) {}

Status HostLink::Open(ChildProgram program) {
  int input[2];
  if (pipe2(input, O_CLOEXEC) != 0) return Status::System("cannot make a pipe", errno);
  program.input_fd = input[0];
  program.capture = true;
  program.own_session = true;
  ChildProcess process;
  const Status status = StartChild(program, &process);
  close(input[0]);
  if (!status.ok()) {
    close(input[1]);
    return status;
  }
  pid_ = process.pid;
  channel_ = std::make_unique<Channel>(Channel::Side::kHead, process.out_fd, input[1]);
  errors_ = std::make_unique<LineSource>(process.err_fd, &words_, "");
  next_alive_ = DeadlineAfter(timeout_ / kAlivesPerTimeout);
  Send(FrameKind::kConfigure, ByteWriter().I64(timeout_ / kMillisecond).bytes());
  return {};
}

void HostLink::AddPolled(std::vector<pollfd>* polled) const {
  polled->push_back({channel_->in_fd(), POLLIN, 0});
  polled->push_back({channel_->unsent() > 0 ? channel_->out_fd() : -1, POLLOUT, 0});
  polled->push_back({errors_->fd(), POLLIN, 0});
}

void HostLink::TakePolled(const pollfd* polled) {
  if (polled[0].revents != 0) channel_->ReadSome();
  if (polled[1].revents != 0) channel_->WriteSome();
  if (polled[2].revents != 0) errors_->ReadSome();
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
  (stream == kOutStream ? out_ : err_)->AddBytes(text);
  (stream == kOutStream ? owed_out_ : owed_err_) += static_cast<int64_t>(text.size());
  return true;
}

void HostLink::GrantCredit(int stream, const Sink& sink, int64_t* owed, bool* dropped) {
  if (sink.broken() && !*dropped) {
    *dropped = true;
    Send(FrameKind::kDropOutput, ByteWriter().I64(stream).bytes());
  }
  if (sink.full() || *owed < kCreditPortion) return;
  Send(FrameKind::kCredit, ByteWriter().I64(stream).I64(*owed).bytes());
  *owed = 0;
}

void HostLink::Advance() {
  if (channel_->in_fd() < 0) return AwaitExit();
  if (!ready_) {
    silent_ = silent_ || Now() >= channel_->last_heard() + kConnectTime;
    return;
  }
  GrantCredit(kOutStream, *out_, &owed_out_, &dropped_out_);
  GrantCredit(kErrStream, *err_, &owed_err_, &dropped_err_);
  const Nanoseconds now = Now();
  silent_ = silent_ || now >= channel_->last_heard() + timeout_;
  if (now < next_alive_) return;
  Send(FrameKind::kAlive);
  next_alive_ = now + timeout_ / kAlivesPerTimeout;
}

void HostLink::AwaitExit() {
  if (exit_) {
    exit_deadline_ = kNoDeadline;
    return;
  }
  channel_->CloseOut();
  if (exit_deadline_ == kNoDeadline) {
    exit_deadline_ = DeadlineAfter(kExitTime);
  } else if (Now() >= exit_deadline_) {
    kill(pid_, SIGKILL);
    exit_deadline_ = DeadlineAfter(kExitTime);
  }
}

Deadline HostLink::deadline() const {
  if (channel_->in_fd() < 0 || silent_) return exit_deadline_;
  if (!ready_) return channel_->last_heard() + kConnectTime;
  return std::min(next_alive_, channel_->last_heard() + timeout_);
}

void HostLink::TakeExit(int wait_status) {
  exit_ = wait_status;
  // Everything that it wrote has arrived by now. Another process that keeps the pipe open has nothing to report.
  while (channel_->ReadSome()) {
  }
  channel_->Close();
  while (errors_->fd() >= 0) {
    if (!errors_->ReadSome()) errors_->Close();
  }
}

std::string HostLink::DescribeEnd() const {
  if (!exit_) return "";
  const std::string last = words_.Last();
  const std::string words = last.empty() ? "" : ": " + last;
  if (WIFSIGNALED(*exit_)) return " (ssh was killed by signal " + std::to_string(WTERMSIG(*exit_)) + ")" + words;
  return " (ssh exited with status " + std::to_string(WEXITSTATUS(*exit_)) + ")" + words;
}

std::string HostLink::Trouble() const {
  if (gone_ || cut_) return "";
  const std::string seconds = std::to_string((ready_ ? timeout_ : kConnectTime) / kSecond) + " s";
  if (silent_)
    return ready_ ? "nothing was heard of it for " + seconds + "; the connection is taken for lost"
                  : "no answer within " + seconds + " (" + words_.Last() + ")";
  if (nonsense_ || channel_->state() == Channel::State::kNonsense) return "what it sends is not annulus-run's";
  if (channel_->state() == Channel::State::kWrongVersion) return "annulus-run there is of another version than here";
  if (!closed()) return "";
  if (ready_) return "the connection broke" + DescribeEnd() + "; its ranks end there by themselves";
  const int status = WIFEXITED(*exit_) ? WEXITSTATUS(*exit_) : -1;
  if (status == kExitHostLost) return "ssh failed: " + words_.Last();
  if (status == kExitNotFound || status == kExitCannotExecute) {
    return "annulus-run cannot be run there: " + words_.Last() + " (--remote-path tells where it is)";
  }
  return "annulus-run does not answer there" + DescribeEnd();
}

void HostLink::Cut() {
  cut_ = true;
  channel_->Close();
  if (pid_ > 0 && !exit_) kill(pid_, SIGKILL);
}

std::vector<std::string> HostLink::TakeWords() { return ready_ ? words_.TakeLines() : std::vector<std::string>(); }

}  // namespace annulus
