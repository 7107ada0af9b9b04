// Handshake: the mutual proof of the job key that opens every connection, before anything else is trusted.
//
//   initiator -> acceptor   hello   (who I am, whom I want, nonce)
//   acceptor -> initiator   hello   (the same, nonce) and HMAC-SHA256 over both hellos
//   initiator -> acceptor   HMAC-SHA256 over both hellos, under another label
//
// Each HMAC covers both sides' fresh nonces, so a recorded handshake proves nothing later. Format:
// docs/wire_protocol.md.
//
// A pure state machine: no sockets, no clock. The owner of the socket feeds it and limits its time.
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "transport/security/handshake_buffers.h"
#include "transport/security/handshake_proof.h"
#include "transport/security/hello.h"

namespace annulus {

class Handshake {
 public:
  static constexpr size_t kHelloBytes = annulus::kHelloBytes;
  static constexpr size_t kPrefixBytes = kHelloPrefixBytes;
  static constexpr size_t kMacBytes = HandshakeProof::kMacBytes;

  using Role = HandshakeRole;
  using Refused = RefusedPeer;
  enum class State { kRunning, kDone, kFailed };

  // `key` may be empty (insecure mode): the exchange is then the same under a publicly known key, and proves nothing.
  // An acceptor's own `hello` provides purpose, identity, nranks and rank; target_rank, channel and lane are taken from
  // the peer.
  Handshake(Role role, const std::string& key, const Hello& hello);

  // Bytes to send to the peer now; call Sent() with how many of them went out.
  std::span<const std::byte> Output() const { return out_.unsent(); }
  void Sent(size_t bytes) { out_.Sent(bytes); }

  // How many bytes the handshake wants next. Never read more than this: the bytes that follow belong to the session.
  size_t Wants() const { return in_.missing(); }
  // Takes up to Wants() bytes from the peer. Errors: kProtocol (not a hello, other version, job, purpose or size),
  // kMismatch (another run, or another setting of encryption), kAuth (wrong key).
  Status Feed(std::span<const std::byte> bytes);

  // kDone requires Output() to be empty too. In state kFailed, Output() may hold what tells the peer what differs: make
  // one attempt to send it before closing.
  State state() const;
  Refused refused() const { return refused_; }
  // The peer's hello. Valid and trustworthy only in state kDone.
  const Hello& peer() const { return peer_.hello; }
  // Whether what follows is to be sealed, and with which key; in state kDone.
  bool encrypts() const { return hello_.encrypts; }
  HandshakeProof::Mac SealKey() const { return proof_.SealKey(); }
  // The lower of the two sides' minor versions, which both can speak. Valid when peer() is.
  uint16_t session_minor() const { return std::min(hello_.version_minor, peer().version_minor); }

 private:
  // The message that is expected next, or the end.
  enum class Stage { kPrefix, kHello, kProof, kVerified, kFailed };

  void QueueHello();
  Status OnPrefix();
  Status OnHello();
  Status OnProof();
  Status CheckEncryption();

  const Role role_;
  Hello hello_;  // This end's.
  PeerHello peer_;
  HelloNonce nonce_{};
  HandshakeProof proof_;
  HandshakeOutput<kHelloBytes + kMacBytes> out_;
  HandshakeInput<kHelloBytes> in_;
  Stage stage_ = Stage::kPrefix;
  Refused refused_ = Refused::kNobody;
};

}  // namespace annulus
