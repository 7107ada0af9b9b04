#include "transport/security/handshake_proof.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <span>

#include "base/bytes.h"
#include "base/check.h"

namespace annulus {
namespace {

// The labels differ but have the same length: neither side's proof can be passed off as the other's.
constexpr std::array<char, 16> kInitiatorLabel = {"annulus  dials "};
constexpr std::array<char, 16> kAcceptorLabel = {"annulus accepts"};

}  // namespace

HandshakeProof::Mac HandshakeProof::MacOf(HandshakeRole author) const {
  const bool initiates = own_ == HandshakeRole::kInitiator;
  std::array<std::byte, kInitiatorLabel.size() + 2 * kHelloBytes> text;
  FixedWriter out(text);
  out.Bytes(std::as_bytes(std::span(author == HandshakeRole::kInitiator ? kInitiatorLabel : kAcceptorLabel)));
  out.Bytes(initiates ? own_hello_ : peer_hello_).Bytes(initiates ? peer_hello_ : own_hello_);
  ANNULUS_CHECK(out.full());
  Mac mac;
  unsigned mac_bytes = 0;
  const unsigned char* made = HMAC(EVP_sha256(), key_.text().data(), static_cast<int>(key_.text().size()),
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                   reinterpret_cast<unsigned char*>(mac.data()), &mac_bytes);
  ANNULUS_CHECK(made != nullptr && mac_bytes == kMacBytes);
  return mac;
}

}  // namespace annulus
