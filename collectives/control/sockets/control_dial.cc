#include "collectives/control/sockets/control_dial.h"

#include <cerrno>
#include <chrono>
#include <utility>

#include "transport/security/door.h"

namespace annulus {

ControlDial::ControlDial(asio::io_context* context, const std::string& key, const Hello& hello)
    : key_(key), hello_(hello), socket_(*context), timer_(*context) {}

void ControlDial::Start(const StreamEndpoint& door, Nanoseconds limit, Done done) {
  done_ = std::move(done);
  timer_.expires_after(std::chrono::nanoseconds(limit));
  timer_.async_wait([self = shared_from_this()](const asio::error_code& ended) {
    const int cause = self->handshake_ == nullptr ? ETIMEDOUT : 0;
    if (!ended) self->Finish({Code::kTimeout, "rank 0 does not answer at its control address", Status::kNoRank, cause});
  });
  if (const int cause = OpenSocket(door.protocol().family(), &socket_); cause != 0) {
    if (!IsOutOfDescriptors(cause)) return Finish(Status::System("cannot open a socket", cause));
    return Finish(OutOfDescriptors(static_cast<int>(hello_.rank), "another control connection to rank 0", cause));
  }
  socket_.async_connect(door, [self = shared_from_this()](const asio::error_code& failed) {
    if (failed) return self->Finish(Status::System("connecting to rank 0", failed.value()));
    self->Prove();
  });
}

void ControlDial::Prove() {
  if (!done_) return;
  handshake_ = std::make_shared<StreamHandshake>(std::move(socket_), Handshake::Role::kInitiator, key_, hello_);
  handshake_->Start(nullptr, [self = shared_from_this()](const Status& status) { self->Finish(status); });
}

void ControlDial::Cancel() {
  done_ = nullptr;
  timer_.cancel();
  asio::error_code ignored;
  socket_.close(ignored);
  if (handshake_ != nullptr) std::exchange(handshake_, nullptr)->Cancel();
}

void ControlDial::Finish(const Status& status) {
  if (!done_) return;
  const Done done = std::exchange(done_, nullptr);
  SealedFd connection;
  if (status.ok()) connection = std::exchange(handshake_, nullptr)->TakeSocket().Release();
  Cancel();
  done(status, std::move(connection));
}

}  // namespace annulus
