#include "transport/security/handshake_proof.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <span>

#include "base/bytes.h"
#include "base/check.h"

namespace annulus {
HandshakeProof::Mac HandshakeProof::MacOf(HandshakeRole author) const {
  return Make(author == HandshakeRole::kInitiator ? kInitiatorLabel : kAcceptorLabel);
}

HandshakeProof::Mac HandshakeProof::SealKey() const { return Make(kSealLabel); }

HandshakeProof::Mac HandshakeProof::Make(const Label& label) const {
  const bool initiates = own_ == HandshakeRole::kInitiator;
  std::array<std::byte, sizeof(Label) + 2 * kHelloBytes> text;
  FixedWriter out(text);
  out.Bytes(std::as_bytes(std::span(label)));
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
