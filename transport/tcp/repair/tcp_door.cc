#include "transport/tcp/repair/tcp_door.h"

namespace annulus {
namespace {

// Lanes that may come at once without being a crowd, beside the strangers that a door allows.
constexpr size_t kExpected = 64;
constexpr Nanoseconds kStrangerLimit = 3 * kSecond;

}  // namespace

TcpDoor::TcpDoor(asio::io_context* context, StreamListener listener, const Hello& hello, const Secret& key)
    : listener_(std::move(listener)) {
  Door::Plan plan;
  plan.hello = hello;
  plan.key = key;
  plan.expected = kExpected;
  plan.limit = kStrangerLimit;
  // The door is closed before this object is gone.
  plan.decide = [this](const Hello& peer) { return Decide(peer); };
  plan.on_proven = [this](Door::Proven proven) {
    const Hello& peer = proven.handshake->peer();
    // It was let in before it proved itself; a later connection may have come meanwhile.
    Link* const link = Find(peer);
    if (link != nullptr && link->Expects(peer.lane, peer.connection)) {
      link->Welcome(peer.lane, peer.connection, proven.handshake->TakeSocket());
    }
  };
  door_ = std::make_shared<Door>(context, std::move(plan));
  door_->Open(&listener_);
}

TcpDoor::Link* TcpDoor::Find(const Hello& peer) const {
  const auto found = links_.find({static_cast<int>(peer.rank), peer.channel});
  return found != links_.end() ? found->second : nullptr;
}

StreamHandshake::Verdict TcpDoor::Decide(const Hello& peer) const {
  const Link* const link = Find(peer);
  const bool welcome = link != nullptr && link->Expects(peer.lane, peer.connection);
  return welcome ? StreamHandshake::Verdict::kWelcome : StreamHandshake::Verdict::kUnexpected;
}

}  // namespace annulus
