#include "transport/tcp/socket/tcp_socket.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "transport/tcp/socket/tcp_options.h"
#include "transport/tcp/socket/tcp_path.h"

namespace annulus {
namespace {

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// What a seal opens of a connection that broke, at most: more than a kernel keeps for a socket.
constexpr size_t kMostOpened = size_t{64} << 20;
constexpr size_t kOpenedAtOnce = size_t{256} << 10;

// Fills the list. Returns its number of bytes.
ssize_t CopyTo(IoList* list, const std::byte* from) {
  for (int i = 0; i < list->count(); ++i) {
    const iovec& piece = list->pieces()[i];
    std::memcpy(piece.iov_base, from, piece.iov_len);
    from += piece.iov_len;
  }
  return static_cast<ssize_t>(list->bytes());
}

msghdr MessageOf(IoList* list) {
  msghdr message{};
  message.msg_iov = list->pieces();
  message.msg_iovlen = static_cast<size_t>(list->count());
  return message;
}

}  // namespace

TcpSocket::TcpSocket(SealedSocket socket)
    : socket_(std::move(socket)), fd_(socket_.socket.native_handle()), armed_(std::make_shared<Armed>()) {}

// For a single piece, as small slices have, the kernel need not copy a list. The same holds for reads.
ssize_t TcpSocket::Send(IoList* from) {
  if (is_sealed()) return socket_.seal->Send(fd_, from->pieces(), static_cast<size_t>(from->count()));
  if (from->count() == 1) return send(fd_, from->pieces()->iov_base, from->bytes(), MSG_NOSIGNAL | MSG_DONTWAIT);
  const msghdr message = MessageOf(from);
  return sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t TcpSocket::Receive(IoList* into) {
  if (is_sealed()) return socket_.seal->Receive(fd_, into->pieces(), static_cast<size_t>(into->count()));
  if (into->count() == 1) return recv(fd_, into->pieces()->iov_base, into->bytes(), MSG_DONTWAIT);
  msghdr message = MessageOf(into);
  return recvmsg(fd_, &message, MSG_DONTWAIT);
}

size_t TcpSocket::Write(IoList* from) {
  ANNULUS_CHECK(from->bytes() > 0);
  ssize_t sent = 0;
  do {
    sent = Send(from);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) {
    write_blocked_ = static_cast<size_t>(sent) < from->bytes();
    return static_cast<size_t>(sent);
  }
  write_blocked_ = WouldBlock(errno);
  if (write_blocked_) return 0;
  write_ended_ = true;
  NoteError(errno);
  return 0;
}

size_t TcpSocket::Read(IoList* into) {
  ANNULUS_CHECK(into->bytes() > 0);  // Reading nothing would look like the end of the connection.
  if (frozen() || !rests_.empty()) [[unlikely]]
    return ReadRest(into);
  ssize_t got = 0;
  do {
    got = Receive(into);
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    // What does not open is told by the next read, for which the kernel raises no event.
    drained_ = static_cast<size_t>(got) < into->bytes() && !(is_sealed() && socket_.seal->has_failed());
    return static_cast<size_t>(got);
  }
  drained_ = true;
  if (got < 0 && WouldBlock(errno)) return 0;
  read_ended_ = true;
  if (got < 0 || expects_another()) NoteError(got < 0 ? errno : EPIPE);
  return 0;
}

// Reads no further than what was there when the connection was frozen.
size_t TcpSocket::ReadRest(IoList* into) {
  const bool is_earlier = !rests_.empty();
  Arrived& arrived = is_earlier ? rests_.front().arrived : arrived_;
  size_t* const left = &arrived.bytes;
  drained_ = *left == 0;
  if (drained_) return 0;
  IoList list;
  for (int i = 0; i < into->count() && list.bytes() < *left; ++i) {
    const iovec& piece = into->pieces()[i];
    list.Add(static_cast<const std::byte*>(piece.iov_base), std::min(piece.iov_len, *left - list.bytes()));
  }
  msghdr message = MessageOf(&list);
  const ssize_t got = arrived.opened.empty()
                          ? recvmsg(is_earlier ? rests_.front().socket.native_handle() : fd_, &message, MSG_DONTWAIT)
                          : CopyTo(&list, arrived.opened.data() + arrived.opened.size() - *left);
  if (got <= 0) {
    if (got < 0 && errno == EINTR) return 0;
    read_ended_ = write_ended_ = true;  // The kernel has not kept what it had.
    NoteError(EPIPE);
    return 0;
  }
  *left -= static_cast<size_t>(got);
  if (is_earlier && *left == 0) rests_.pop_front();
  read_ended_ = phase_ == Phase::kGivenUp && BytesOfRests() == 0;
  return static_cast<size_t>(got);
}

// How much of what has arrived can be used shows only when it is opened.
void TcpSocket::OpenArrived() {
  std::vector<std::byte>& opened = arrived_.opened;
  for (ssize_t got = 1; got > 0 && opened.size() < kMostOpened;) {
    const size_t before = opened.size();
    opened.resize(before + kOpenedAtOnce);
    IoList room;
    room.Add(opened.data() + before, kOpenedAtOnce);
    got = Receive(&room);
    opened.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  }
  arrived_.bytes = opened.size();
}

void TcpSocket::ExpectAnother() {
  if (phase_ != Phase::kInUse) return;
  phase_ = Phase::kExpectsAnother;
  if (errno_ == EPIPE || (read_ended_ && errno_ == 0)) errno_ = ECONNRESET;
}

size_t TcpSocket::Freeze() {
  if (!frozen()) {
    phase_ = Phase::kFrozen;
    StopTaking(fd_);  // It may be alive, only slow.
    int bytes = 0;
    if (is_sealed() && !read_ended_) {
      OpenArrived();
    } else if (!read_ended_ && ioctl(fd_, SIOCINQ, &bytes) == 0) {
      arrived_.bytes = static_cast<size_t>(bytes);
    }
    write_ended_ = true;
    drained_ = false;
  }
  return BytesOfRests();
}

size_t TcpSocket::BytesOfRests() const {
  size_t bytes = arrived_.bytes;
  for (const Rest& rest : rests_) bytes += rest.arrived.bytes;
  return bytes;
}

void TcpSocket::Replace(SealedSocket next) {
  ANNULUS_CHECK(frozen());
  Retransmits();  // Keeps the final value.
  const std::lock_guard<std::mutex> lock(close_mutex_);
  retransmits_.earlier = retransmits_.latest;
  asio::error_code ignored;
  socket_.socket.cancel(ignored);
  armed_ = std::make_shared<Armed>();  // Handlers of the old one may still be queued.
  if (arrived_.bytes > 0) {
    rests_.push_back({std::move(socket_.socket), std::move(arrived_)});
  } else {
    socket_.socket.close(ignored);
  }
  arrived_ = {};
  socket_.socket = std::move(next.socket);
  socket_.seal = std::move(next.seal);
  fd_ = socket_.socket.native_handle();
  phase_ = Phase::kInUse;
  write_blocked_ = drained_ = write_ended_ = read_ended_ = told_end_ = false;
  errno_ = 0;
}

void TcpSocket::GiveUp() {
  if (phase_ != Phase::kFrozen) return;
  phase_ = Phase::kGivenUp;
  NoteError(ETIMEDOUT);
  write_ended_ = true;
  read_ended_ = BytesOfRests() == 0;
  drained_ = read_ended_;
}

void TcpSocket::BreakIfDropped() {
  if (broken() || frozen() || !IsDropped(fd_)) return;
  errno_ = ECONNRESET;
  write_ended_ = true;  // What has come can still be read.
}

void TcpSocket::NoteError(int error) {
  if (errno_ != 0) return;
  errno_ = expects_another() && error == EPIPE ? ECONNRESET : error;
}

void TcpSocket::ArmRead() {
  if (std::exchange(armed_->read, true)) return;
  const auto handler = [armed = armed_](const asio::error_code&) { armed->read = false; };
  socket_.socket.async_wait(StreamSocket::wait_read, armed_->read_handler.Keep(handler));
}

void TcpSocket::ArmWrite() {
  if (std::exchange(armed_->write, true)) return;
  const auto handler = [armed = armed_](const asio::error_code&) { armed->write = false; };
  socket_.socket.async_wait(StreamSocket::wait_write, armed_->write_handler.Keep(handler));
}

void TcpSocket::ShutDownWrites() {
  write_ended_ = true;
  told_end_ |= shutdown(fd_, SHUT_WR) == 0;
}

int TcpSocket::BytesOnTheWay() const {
  int bytes = 0;
  return ioctl(fd_, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

size_t TcpSocket::Unacknowledged() const {
  const int bytes = BytesOnTheWay() - (told_end_ ? 1 : 0);
  if (bytes <= 0) return 0;
  // The kernel counts sealed bytes, which are more; but nothing of a record can be used before all of it is there.
  return static_cast<size_t>(bytes) + (is_sealed() ? Seal::kMostInRecord : 0);
}

uint64_t TcpSocket::Retransmits() const {
  const std::lock_guard<std::mutex> lock(close_mutex_);
  if (!closed_) {
    retransmits_.latest = retransmits_.earlier + RetransmitsOf(fd_, retransmits_.latest - retransmits_.earlier);
  }
  return retransmits_.latest;
}

void TcpSocket::Close() {
  Retransmits();  // Keeps the final value.
  const std::lock_guard<std::mutex> lock(close_mutex_);
  closed_ = true;
  asio::error_code ignored;
  socket_.socket.close(ignored);
  rests_.clear();
  read_ended_ = write_ended_ = true;
}

}  // namespace annulus
