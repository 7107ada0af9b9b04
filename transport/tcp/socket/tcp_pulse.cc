#include "transport/tcp/socket/tcp_pulse.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "transport/tcp/socket/tcp_path.h"

namespace annulus {
namespace {

// One packet may be lost, and its retransmission too now and then. On a short path the kernel sends it again after
// 0.2 s, so within this time two of three were lost at least, and the peer's kernel puts no acknowledgement off so
// long.
constexpr Nanoseconds kAnswer = 500 * kMillisecond;
constexpr Nanoseconds kRoundTrips = 4;  // On a long path, so many in its place.
constexpr int kMostUnanswered = 1;      // Retransmissions, or probes, that the kernel counts.
// Quiet for so long, a connection is asked for a sign of life. Ranks that work together are hardly ever so far apart.
constexpr Nanoseconds kAskAfter = 150 * kMillisecond;
// The shortest time that TCP_KEEPIDLE can say.
constexpr int kAskByKernelAfterSeconds = 1;

void SetIdle(int fd, int seconds) { setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds); }

int IdleOf(int fd) {
  int seconds = kAskByKernelAfterSeconds;
  socklen_t bytes = sizeof seconds;
  getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, &bytes);
  return seconds;
}

}  // namespace

bool TcpPulse::IsSilent(const Watched& watched, const std::function<size_t()>& ask) {
  const PathAnswers answers = PathAnswersOf(watched.fd);
  const Nanoseconds now = Now();
  // Between two looks a rank may compute for long, and what is owed now be another thing than before.
  if (std::exchange(owes_after_, answers.owes_after) != answers.owes_after) owed_since_ = now;
  const Nanoseconds patience = std::max(kAnswer, kRoundTrips * answers.round_trip);
  const bool is_overdue = owes_after_ && std::min(answers.quiet, now - owed_since_) >= patience;
  const bool is_silent = is_overdue || answers.unanswered > kMostUnanswered;

  if (std::exchange(carried_, watched.carried) != watched.carried) asked_ = 0;
  const bool wonders = !is_silent && !owes_after_ && answers.quiet >= kAskAfter;
  const bool is_used = watched.awaits || watched.carried > 0;
  const size_t asked = wonders && is_used && asked_ < kMostAsked ? ask() : 0;
  if (asked > 0) {
    ++asked_;
    carried_ += asked;
    owes_after_ = PathAnswersOf(watched.fd).owes_after;
    owed_since_ = now;
  } else if (wonders && watched.awaits && answers.quiet >= kAskByKernelAfterSeconds * kSecond) {
    AskByKernel(watched.fd);
    return false;
  }
  StopAsking(watched.fd);
  return is_silent;
}

// Each time that the idle time is set and is over already, the kernel sends a probe at once.
void TcpPulse::AskByKernel(int fd) {
  if (!usual_idle_s_) usual_idle_s_ = IdleOf(fd);
  SetIdle(fd, kAskByKernelAfterSeconds);
}

void TcpPulse::StopAsking(int fd) {
  if (usual_idle_s_) SetIdle(fd, *usual_idle_s_);
  usual_idle_s_.reset();
}

}  // namespace annulus
