// HandshakeProof: the HMACs by which both ends of a handshake show that they hold the same job key, and the key that
// they then share. Each is made of both hellos under a label of its own: none can be passed off as another.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "base/secret.h"
#include "transport/security/hello.h"

namespace annulus {

class HandshakeProof {
 public:
  static constexpr size_t kMacBytes = 32;
  using Mac = std::array<std::byte, kMacBytes>;

  // `own` is this end's role. The key may be empty: the HMACs are then made with a publicly known key.
  HandshakeProof(HandshakeRole own, const std::string& key) : own_(own), key_(key) {}

  bool has_key() const { return !key_.empty(); }

  // Both hellos exactly as they went over the wire; they are part of what is proven.
  void SetOwnHello(const HelloBytes& hello) { own_hello_ = hello; }
  void SetPeerHello(const HelloBytes& hello) { peer_hello_ = hello; }

  // The HMAC with which the end in that role shows that it has the key. Both hellos must be set.
  Mac MacOf(HandshakeRole author) const;
  // A key for this connection, the same at both ends, which only who has the job key knows. Both hellos must be set.
  Mac SealKey() const;

 private:
  using Label = std::array<char, 16>;
  static constexpr Label kInitiatorLabel = {"annulus  dials "};
  static constexpr Label kAcceptorLabel = {"annulus accepts"};
  static constexpr Label kSealLabel = {"annulus   seals"};

  Mac Make(const Label& label) const;

  const HandshakeRole own_;
  const Secret key_;
  HelloBytes own_hello_{};
  HelloBytes peer_hello_{};
};

}  // namespace annulus
