// StreamHandshake: runs one Handshake over one connected socket, then the handshake of its seal, if the ranks encrypt,
// and last the acceptor's verdict.
//
// The verdict is one byte after the proofs. It tells the initiator that the acceptor keeps the connection, so neither
// side ever relies on a connection that the other has dropped.
//
// Threads: the one that runs the socket's io_context. Held by shared_ptr; handlers that are still queued keep it alive.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "transport/security/auth.h"
#include "transport/security/sealed_socket.h"
#include "transport/stream_socket.h"

namespace annulus {

class StreamHandshake : public std::enable_shared_from_this<StreamHandshake> {
 public:
  enum class Verdict : uint8_t { kWelcome = 1, kDuplicate = 2, kUnexpected = 3 };
  using Done = std::function<void(Status)>;
  // An acceptor's decision on a peer that has proven itself.
  using Decide = std::function<Verdict(const Hello& peer)>;

  StreamHandshake(StreamSocket socket, Handshake::Role role, const std::string& key, const Hello& hello);

  // Runs to the end and calls `done` once, unless Cancel() comes first. `decide` is for an acceptor, else null.
  // Errors: as Handshake, and kPeerLost when the connection ends early.
  void Start(Decide decide, Done done);

  // Closes the socket; `done` will not be called any more.
  void Cancel();

  // Whether the peer has sent anything.
  bool spoken_to() const { return spoken_to_; }
  // Whether an acceptor's peer has said a hello, which is being answered.
  bool greeted() const { return answered_ || !handshake_.Output().empty(); }
  // Whether the peer has proven that it holds the key.
  bool proven() const { return handshake_.state() == Handshake::State::kDone; }
  Handshake::Refused refused() const { return handshake_.refused(); }
  // Whether the peer has this acceptor's proof and has not answered it with its own.
  bool owes_proof() const { return role_ == Handshake::Role::kAcceptor && answered_ && !proven(); }
  const Hello& peer() const { return handshake_.peer(); }
  uint16_t session_minor() const { return handshake_.session_minor(); }
  SealedSocket TakeSocket() { return std::move(socket_); }

 private:
  void Continue();
  void Write();
  void Read();
  void OnInput(size_t bytes);
  void BeginSeal();
  void Shake();
  void SendVerdict();
  void ReadVerdict();
  void OnVerdict();
  void Finish(Status status);
  void FinishLost(const asio::error_code& error);

  const Handshake::Role role_;
  SealedSocket socket_;
  Handshake handshake_;
  Decide decide_;
  Done done_;
  std::array<std::byte, Handshake::kHelloBytes> in_{};
  bool spoken_to_ = false;
  bool answered_ = false;  // Some bytes of this side were sent.
};

}  // namespace annulus
