#include "collectives/control/sockets/socket_net.h"

#include <asio/steady_timer.hpp>
#include <chrono>
#include <utility>

#include "collectives/control/sockets/control_stream.h"

namespace annulus {
namespace {

class SteadyTimer : public ControlTimer {
 public:
  explicit SteadyTimer(asio::io_context* context) : timer_(*context) {}

  // A handler that is queued already runs all the same, and finds that it is no longer the latest.
  void Set(Nanoseconds wait, std::function<void()> run) override {
    const auto latest = Renew();
    timer_.expires_after(std::chrono::nanoseconds(wait));
    timer_.async_wait([latest = std::weak_ptr<bool>(latest), run = std::move(run)](const asio::error_code& ended) {
      if (!ended && !latest.expired()) run();
    });
  }
  void Cancel() override {
    latest_ = nullptr;
    timer_.cancel();
  }

 private:
  std::shared_ptr<bool> Renew() { return latest_ = std::make_shared<bool>(); }

  asio::steady_timer timer_;
  std::shared_ptr<bool> latest_;  // Held by the timer alone; gone once something else is to run.
};

}  // namespace

SocketNet::SocketNet(asio::io_context* context, Secret key, const Hello& hello)
    : context_(context), key_(std::move(key)), hello_(hello) {}

SocketNet::~SocketNet() { CancelDial(); }

std::unique_ptr<ControlTimer> SocketNet::MakeTimer() { return std::make_unique<SteadyTimer>(context_); }

Status SocketNet::Adopt(SealedFd connection, size_t most_bytes, std::shared_ptr<MessageStream>* stream) {
  std::shared_ptr<ControlStream> made;
  ANNULUS_RETURN_IF_ERROR(ControlStream::Create(context_, std::move(connection), most_bytes, &made));
  *stream = std::move(made);
  return Status();
}

Status SocketNet::OpenDoor(int listener, Expects expects, Returned returned) {
  door_ = std::make_unique<ControlDoor>(context_, key_, hello_, std::move(expects), std::move(returned));
  return door_->Open(listener);
}

void SocketNet::Dial(const StreamEndpoint& door, Nanoseconds limit, Dialled done) {
  CancelDial();
  dial_ = std::make_shared<ControlDial>(context_, key_, hello_);
  dial_->Start(door, limit, [this, done = std::move(done)](const Status& status, SealedFd connection) {
    dial_ = nullptr;
    done(status, std::move(connection));
  });
}

void SocketNet::CancelDial() {
  if (dial_ != nullptr) std::exchange(dial_, nullptr)->Cancel();
}

}  // namespace annulus
