// HandshakeProof: the HMACs by which both ends of a handshake show that they hold the same job key.
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

 private:
  const HandshakeRole own_;
  const Secret key_;
  HelloBytes own_hello_{};
  HelloBytes peer_hello_{};
};

}  // namespace annulus
