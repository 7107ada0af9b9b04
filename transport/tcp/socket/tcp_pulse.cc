#include "transport/tcp/socket/tcp_pulse.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "transport/tcp/socket/tcp_path.h"

namespace annulus {
namespace {

// One packet may be lost, and its retransmission too now and then. On a short path the second one is sent 0.6 s after
// the first.
constexpr int kMostUnanswered = 1;
// A second without a packet is long within a call, and the shortest time that TCP_KEEPIDLE can say.
constexpr int kAskAfterSeconds = 1;

void SetIdle(int fd, int seconds) { setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds); }

int IdleOf(int fd) {
  int seconds = kAskAfterSeconds;
  socklen_t bytes = sizeof seconds;
  getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, &bytes);
  return seconds;
}

}  // namespace

bool TcpPulse::IsSilent(int fd, bool awaits) {
  const PathAnswers answers = PathAnswersOf(fd);
  const bool is_silent = answers.unanswered > kMostUnanswered;
  const bool asks = awaits && !is_silent && answers.quiet >= kAskAfterSeconds * kSecond;
  asks ? Ask(fd) : StopAsking(fd);
  return is_silent;
}

// Each time that the idle time is set and is over already, the kernel sends a probe at once.
void TcpPulse::Ask(int fd) {
  if (!usual_idle_s_) usual_idle_s_ = IdleOf(fd);
  SetIdle(fd, kAskAfterSeconds);
}

void TcpPulse::StopAsking(int fd) {
  if (usual_idle_s_) SetIdle(fd, *usual_idle_s_);
  usual_idle_s_.reset();
}

}  // namespace annulus
