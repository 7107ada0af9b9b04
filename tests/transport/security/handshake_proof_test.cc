// Test of HandshakeProof: the key of a connection's seal is what docs/wire_protocol.md says. auth_test has the rest.
#include "transport/security/handshake_proof.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace annulus {
namespace {

TEST(HandshakeProofTest, TheKeyOfTheSealIsAsSpecified) {
  HelloBytes initiator;
  HelloBytes acceptor;
  for (size_t i = 0; i < kHelloBytes; ++i) {
    initiator[i] = static_cast<std::byte>((i * 7) & 0xff);
    acceptor[i] = static_cast<std::byte>((i * 13 + 5) & 0xff);
  }
  HandshakeProof proof(HandshakeRole::kAcceptor, "a key of a test job");
  proof.SetOwnHello(acceptor);
  proof.SetPeerHello(initiator);
  std::string text;
  for (const std::byte byte : proof.SealKey()) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
    text += digits;
  }
  // Computed from docs/wire_protocol.md with another program's HMAC-SHA256.
  EXPECT_EQ(text, "a7b1008d6af8565196fe17662f355ce613e76559c74f7af5e096bd5eff0033fd");
}

}  // namespace
}  // namespace annulus
