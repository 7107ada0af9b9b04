#include "transport/security/door.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "transport/forked_child.h"
#include "transport/security/crowd.h"

namespace annulus {
namespace {

// Largest number of strangers' connections that may wait for proof at once; those of expected peers come on top.
constexpr size_t kMaxStrangers = 64;
// Connections accepted before others get their turn.
constexpr int kAcceptsPerTurn = 16;
// How long to stop accepting when there are no descriptors or no memory, or for a reason that may last.
constexpr Nanoseconds kAcceptPause = 20 * kMillisecond;
// A rank has said its hello by then, so whoever is silent may be dropped for want of descriptors.
constexpr Nanoseconds kSilence = 100 * kMillisecond;

// Whether accept's error is about the connection that was to be accepted. The kernel passes such a connection's network
// errors on.
bool IsOfOneConnection(int os_errno) {
  constexpr int kErrors[] = {EINTR,    ECONNABORTED, ECONNRESET, EPROTO,       ENOPROTOOPT, EOPNOTSUPP,
                             ENETDOWN, ENETUNREACH,  EHOSTDOWN,  EHOSTUNREACH, ENONET,      ETIMEDOUT};
  return std::ranges::count(kErrors, os_errno) > 0;
}

bool IsUnix(const StreamEndpoint& endpoint) { return endpoint.data()->sa_family == AF_UNIX; }

}  // namespace

Door::Door(asio::io_context* context, Plan plan)
    : context_(context),
      plan_(std::move(plan)),
      strays_(static_cast<int>(plan_.hello.rank)),
      pause_(*context),
      random_(static_cast<uint32_t>(Now())) {}

void Door::Open(StreamListener* listener) {
  listener_ = listener;
  Await();
}

void Door::Close() {
  if (listener_ == nullptr) return;
  asio::error_code ignored;
  if (listener_->is_open()) listener_->cancel(ignored);
  listener_ = nullptr;
  UseSpare();
  pause_.cancel();
  while (!visitors_.empty()) Remove(visitors_.begin());
}

void Door::Note(Strays::Reason reason, const std::string& from, const std::string& detail) {
  last_dropped_ = from + ": " + detail;
  strays_.Add(reason, from, detail);
}

// Another thread may take the descriptor first; then the next pause tries again.
bool Door::UseSpare() {
  if (spare_ < 0) return false;
  ::close(std::exchange(spare_, -1));
  return true;
}

void Door::KeepSpare() {
  if (plan_.keeps_spare && spare_ < 0) spare_ = ::eventfd(0, EFD_CLOEXEC);
}

void Door::Await() {
  KeepSpare();
  listener_->async_wait(StreamListener::wait_read, [self = shared_from_this()](const asio::error_code& error) {
    if (self->listener_ == nullptr || error == asio::error::operation_aborted) return;
    self->AcceptSome();
  });
}

void Door::AcceptSome() {
  ++turn_;
  for (int i = 0; i < kAcceptsPerTurn && listener_ != nullptr; ++i) {
    StreamEndpoint from;
    socklen_t bytes = static_cast<socklen_t>(from.capacity());
    const int fd = ::accept4(listener_->native_handle(), from.data(), &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      from.resize(bytes);
      Greet(fd, from);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (!Recover(errno)) {
      return;
    }
  }
  if (listener_ != nullptr) Await();
}

bool Door::Recover(int os_errno) {
  if (IsOutOfDescriptors(os_errno)) {
    if (DropSilent() || UseSpare()) return true;
    if (visitors_.empty() && plan_.on_exhausted) {
      plan_.on_exhausted(OutOfDescriptors(static_cast<int>(plan_.hello.rank), "another rank's connection", os_errno));
    }
  } else if (IsOfOneConnection(os_errno)) {
    return true;
  }
  Pause();
  return false;
}

void Door::Pause() {
  pause_.expires_after(std::chrono::nanoseconds(kAcceptPause));
  pause_.async_wait([self = shared_from_this()](const asio::error_code& error) {
    if (!error && self->listener_ != nullptr) self->AcceptSome();
  });
}

void Door::Greet(int fd, const StreamEndpoint& from) {
  std::string name = EndpointText(from);
  std::string host = HostText(from);
  StreamSocket socket(*context_);
  asio::error_code error;
  socket.assign(StreamProtocol(from.data()->sa_family, 0), fd, error);
  if (error) {
    ::close(fd);
    return Note(Strays::kLeft, name, "it cannot be waited for: " + error.message());
  }
  CloseInForkedChildren(fd);
  if (IsUnix(from)) {
    ucred peer{};
    socklen_t bytes = sizeof peer;
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return;
    name = host = "process " + std::to_string(peer.pid) + " of user " + std::to_string(peer.uid);
    if (peer.uid != ::geteuid() && peer.uid != 0) {
      return Note(Strays::kOtherUser, name, "only processes of user " + std::to_string(::geteuid()) + " may connect");
    }
  }
  if (visitors_.size() >= kMaxStrangers + plan_.expected) DropFromCrowd();
  const auto visitor = visitors_.emplace(visitors_.end(), *context_);
  visitor->from = std::move(name);
  visitor->host = std::move(host);
  int& from_its_host = hosts_[visitor->host];
  ++from_its_host;
  visitor->from_its_host = &from_its_host;
  visitor->turn = turn_;
  visitor->since = Now();
  visitor->limit = DeadlineAfter(plan_.limit);
  visitor->handshake =
      std::make_shared<StreamHandshake>(std::move(socket), Handshake::Role::kAcceptor, plan_.key, plan_.hello);
  const std::shared_ptr<StreamHandshake> handshake = visitor->handshake;  // May finish, and be released, inside Start.
  visitor->timer.expires_after(std::chrono::nanoseconds(plan_.limit));
  visitor->timer.async_wait([self = shared_from_this(), handshake](const asio::error_code& failed) {
    if (!failed && self->listener_ != nullptr) self->DropSlow(handshake.get());
  });
  handshake->Start(plan_.decide, [self = shared_from_this(), visitor](Status status) {
    if (self->listener_ != nullptr) self->OnResult(visitor, std::move(status));
  });
}

void Door::OnResult(Visitors::iterator visitor, Status status) {
  const std::shared_ptr<StreamHandshake> handshake = visitor->handshake;
  if (status.ok()) {
    Proven proven{visitor->from, visitor->limit, handshake};
    visitor->handshake = nullptr;
    Remove(visitor);
    return plan_.on_proven(std::move(proven));
  }
  Strays::Reason reason = Strays::ReasonOf(*handshake, status);
  std::string detail = status.message();
  if (handshake->proven()) {
    const Hello& peer = handshake->peer();
    const StreamHandshake::Verdict verdict = plan_.decide(peer);
    if (verdict == StreamHandshake::Verdict::kDuplicate) reason = Strays::kDuplicate;
    if (verdict == StreamHandshake::Verdict::kUnexpected) reason = Strays::kUnexpected;
    detail = "rank " + std::to_string(peer.rank) + ", channel " + std::to_string(peer.channel) + ", lane " +
             std::to_string(peer.lane) + ": " + detail;
  }
  Drop(visitor, reason, detail);
  if (handshake->refused() == RefusedPeer::kUnlike && plan_.on_unlike) plan_.on_unlike(status);
}

// The timer may have expired just before its entry was removed, so the entry is looked up.
void Door::DropSlow(const StreamHandshake* handshake) {
  const auto found =
      std::ranges::find_if(visitors_, [&](const Visitor& visitor) { return visitor.handshake.get() == handshake; });
  if (found != visitors_.end()) Drop(found, Strays::kSlow, "it did not prove itself in time");
}

void Door::DropFromCrowd() {
  std::vector<CrowdMember> members;
  members.reserve(visitors_.size());
  using Stage = CrowdMember::Stage;
  for (const Visitor& visitor : visitors_) {
    const bool spoke = visitor.handshake->spoken_to();
    const bool greeted = visitor.handshake->greeted() || visitor.turn == turn_;
    members.push_back({greeted ? Stage::kGreeted : spoke ? Stage::kSpoke : Stage::kSilent, *visitor.from_its_host});
  }
  const auto chosen = std::next(visitors_.begin(), static_cast<std::ptrdiff_t>(ChooseToDrop(members, random_())));
  Drop(chosen, Strays::kCrowded, "one of too many connections without proof");
}

bool Door::DropSilent() {
  const Nanoseconds before = Now() - kSilence;
  const auto found = std::ranges::find_if(
      visitors_, [&](const Visitor& visitor) { return !visitor.handshake->spoken_to() && visitor.since < before; });
  if (found == visitors_.end()) return false;
  Drop(found, Strays::kCrowded, "it was silent when descriptors had run out");
  return true;
}

void Door::Drop(Visitors::iterator visitor, Strays::Reason reason, const std::string& detail) {
  Note(reason, visitor->from, detail);
  Remove(visitor);
}

void Door::Remove(Visitors::iterator visitor) {
  visitor->timer.cancel();
  if (visitor->handshake) visitor->handshake->Cancel();
  const auto host = hosts_.find(visitor->host);
  if (--host->second == 0) hosts_.erase(host);
  visitors_.erase(visitor);
}

Status OutOfDescriptors(int rank, const std::string& what, int os_errno) {
  std::string text =
      "rank " + std::to_string(rank) + " has no file descriptor left for " + what + ": " + std::strerror(os_errno);
  rlimit limit{};
  if (os_errno == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    text += " (EMFILE; its limit, ulimit -n, is " + std::to_string(limit.rlim_cur) + ")";
  }
  if (os_errno == ENFILE) text += " (ENFILE; the limit is the system's)";
  return {Code::kSystem, text, rank, os_errno};
}

Status NamingWhoIsOut(int rank, const std::string& what, Status status) {
  const bool is_named = status.peer() != Status::kNoRank;
  if (status.code() != Code::kSystem || is_named || !IsOutOfDescriptors(status.os_errno())) return status;
  return OutOfDescriptors(rank, what, status.os_errno());
}

bool IsOutOfDescriptors(int os_errno) { return os_errno == EMFILE || os_errno == ENFILE; }

}  // namespace annulus
