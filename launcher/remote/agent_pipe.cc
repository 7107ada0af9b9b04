#include "launcher/remote/agent_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/bytes.h"

namespace annulus {
namespace {

constexpr std::string_view kAgentGreeting = "annulus-run agent ";
constexpr std::string_view kVersion = "4";
constexpr size_t kMaxNoise = 256 * 1024;         // Output of login scripts.
constexpr size_t kHeadBytes = 5;                 // Kind and length.
constexpr size_t kMaxContent = 8 * 1024 * 1024;  // Linux allows 2 MiB of arguments and environment to a program.
constexpr size_t kReadBytes = 64 * 1024;

}  // namespace

AgentPipe::AgentPipe(Side side, int in_fd, int out_fd)
    : in_fd_(in_fd), out_fd_(out_fd), greeted_(side == Side::kAgent), last_heard_(Now()) {
  fcntl(in_fd_, F_SETFL, fcntl(in_fd_, F_GETFL) | O_NONBLOCK);
  fcntl(out_fd_, F_SETFL, fcntl(out_fd_, F_GETFL) | O_NONBLOCK);
  if (side == Side::kAgent) unsent_.append("\n").append(kAgentGreeting).append(kVersion).append("\n");
}

AgentPipe::~AgentPipe() { Close(); }

void AgentPipe::Send(AgentMessageKind kind, std::string_view content) {
  if (out_fd_ < 0) return;
  const auto bytes = static_cast<uint32_t>(content.size());
  unsent_.append(ByteWriter().U8(static_cast<uint8_t>(kind)).U32(bytes).bytes()).append(content);
}

void AgentPipe::WriteSome() {
  if (out_fd_ < 0 || unsent_.empty()) return;
  const ssize_t written = write(out_fd_, unsent_.data(), unsent_.size());
  if (written > 0) {
    unsent_.erase(0, static_cast<size_t>(written));
  } else if (written < 0 && errno != EINTR && errno != EAGAIN) {
    // The reason, if there is one, may still arrive from the other direction.
    CloseOut();
  }
}

bool AgentPipe::ReadSome() {
  if (in_fd_ < 0) return false;
  std::array<char, kReadBytes> bytes;
  const ssize_t got = read(in_fd_, bytes.data(), bytes.size());
  if (got > 0) {
    received_.append(bytes.data(), static_cast<size_t>(got));
    last_heard_ = Now();
    if (!greeted_) SkipToGreeting();
  } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
    close(in_fd_);
    in_fd_ = -1;
    if (state_ == State::kOpen) state_ = State::kEnded;
  }
  return got > 0;
}

void AgentPipe::SkipToGreeting() {
  const std::string opening = "\n" + std::string(kAgentGreeting);
  const size_t found = received_.find(opening);
  if (found == std::string::npos) {
    if (received_.size() > kMaxNoise) Fail(State::kNonsense);
    return;
  }
  const size_t version = found + opening.size();
  const size_t end = received_.find('\n', version);
  if (end == std::string::npos) return;
  if (received_.compare(version, end - version, kVersion) != 0) return Fail(State::kWrongVersion);
  received_.erase(0, end + 1);
  greeted_ = true;
}

std::optional<AgentMessage> AgentPipe::Next() {
  const std::string_view rest = std::string_view(received_).substr(taken_);
  if (!greeted_ || rest.size() < kHeadBytes) return std::nullopt;
  ByteReader head(rest.substr(0, kHeadBytes));
  const uint8_t kind = head.U8();
  const size_t bytes = head.U32();
  if (kind == 0 || kind > static_cast<uint8_t>(kLastAgentMessageKind) || bytes > kMaxContent) {
    Fail(State::kNonsense);
    return std::nullopt;
  }
  if (rest.size() < kHeadBytes + bytes) return std::nullopt;
  AgentMessage message{static_cast<AgentMessageKind>(kind), std::string(rest.substr(kHeadBytes, bytes))};
  taken_ += kHeadBytes + bytes;
  if (taken_ * 2 >= received_.size()) {  // Moving the rest to the front costs at most as much as was taken.
    received_.erase(0, taken_);
    taken_ = 0;
  }
  return message;
}

void AgentPipe::Fail(State state) {
  state_ = state;
  received_.clear();
  taken_ = 0;
  Close();
}

void AgentPipe::CloseOut() {
  unsent_.clear();
  if (out_fd_ >= 0) close(out_fd_);
  out_fd_ = -1;
}

void AgentPipe::Close() {
  CloseOut();
  if (in_fd_ >= 0) close(in_fd_);
  in_fd_ = -1;
  if (state_ == State::kOpen) state_ = State::kEnded;
}

}  // namespace annulus
