#include "transport/security/auth.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include "base/library.h"

namespace annulus {
namespace {

std::string Version(unsigned major, unsigned minor) { return std::to_string(major) + "." + std::to_string(minor); }

}  // namespace

Handshake::Handshake(Role role, const std::string& key, const Hello& hello)
    : role_(role), hello_(hello), proof_(role, key), in_(kPrefixBytes) {
  if (RAND_bytes(nonce_.data(), static_cast<int>(nonce_.size())) != 1) {
    stage_ = Stage::kFailed;
    in_.Begin(0);
    return;
  }
  if (role_ == Role::kInitiator) QueueHello();
}

Handshake::State Handshake::state() const {
  if (stage_ == Stage::kFailed) return State::kFailed;
  return stage_ == Stage::kVerified && out_.empty() ? State::kDone : State::kRunning;
}

Status Handshake::Feed(std::span<const std::byte> bytes) {
  if (stage_ == Stage::kFailed) {
    return {Code::kSystem, "the system has no random bytes for a handshake, or it failed before"};
  }
  in_.Add(bytes);
  if (Wants() > 0 || stage_ == Stage::kVerified) return Status();
  Status status;
  if (stage_ == Stage::kProof) {
    status = OnProof();
  } else {
    status = stage_ == Stage::kPrefix ? OnPrefix() : OnHello();
  }
  if (!status.ok()) {
    if (refused_ == Refused::kNobody) refused_ = Refused::kOther;
    stage_ = Stage::kFailed;
    in_.Begin(0);
  }
  return status;
}

void Handshake::QueueHello() {
  const HelloBytes bytes = EncodeHello(hello_, role_, proof_.has_key(), nonce_);
  proof_.SetOwnHello(bytes);
  out_.Add(bytes);
}

// A hello of another major version may be shorter or longer, so this is all that is read of it.
Status Handshake::OnPrefix() {
  if (!DecodeHelloPrefix(in_.bytes(), &peer_.hello)) {
    refused_ = Refused::kStranger;
    return {Code::kProtocol, "what was received is not an Annulus hello"};
  }
  stage_ = Stage::kHello;
  in_.Extend(kHelloBytes);
  if (peer().version_major == hello_.version_major) return Status();
  if (role_ == Role::kAcceptor) QueueHello();
  return {Code::kProtocol, "the peer's library (unproven) speaks wire version " +
                               Version(peer().version_major, peer().version_minor) + ", that of this rank, Annulus " +
                               LibraryText(ThisLibrary()) + ", speaks " +
                               Version(hello_.version_major, hello_.version_minor)};
}

Status Handshake::OnHello() {
  proof_.SetPeerHello(in_.bytes());
  DecodeHello(in_.bytes(), &peer_);
  if (role_ == Role::kAcceptor) {
    hello_.target_rank = peer().rank;
    hello_.channel = peer().channel;
    hello_.lane = peer().lane;
    hello_.connection = peer().connection;
    // Also sent when the check below fails, so that the initiator can name the difference.
    QueueHello();
  }
  ANNULUS_RETURN_IF_ERROR(CheckHello(hello_, role_, peer_, &refused_));
  stage_ = Stage::kProof;
  in_.Begin(kMacBytes);
  if (role_ == Role::kAcceptor) out_.Add(proof_.MacOf(Role::kAcceptor));
  return Status();
}

Status Handshake::OnProof() {
  const HandshakeProof::Mac expected = proof_.MacOf(role_ == Role::kInitiator ? Role::kAcceptor : Role::kInitiator);
  if (CRYPTO_memcmp(in_.bytes().data(), expected.data(), kMacBytes) != 0) {
    const char* why = " holds another job key";
    if (!peer_.has_key && proof_.has_key()) why = " runs without a job key, this rank has one";
    if (peer_.has_key && !proof_.has_key()) why = " has a job key, this rank runs without one";
    return {Code::kAuth, peer_.Name() + why, static_cast<int>(peer().rank), 0};
  }
  if (role_ == Role::kInitiator) out_.Add(proof_.MacOf(Role::kInitiator));
  ANNULUS_RETURN_IF_ERROR(CheckEncryption());
  stage_ = Stage::kVerified;
  in_.Begin(0);
  return Status();
}

// Not before the proofs: then nobody but a rank of this job can make another one believe that settings differ.
Status Handshake::CheckEncryption() {
  if (peer().encrypts == hello_.encrypts) return Status();
  refused_ = Refused::kUnlike;
  const auto setting = [](bool encrypts) { return std::string("ANNULUS_ENCRYPT=") + (encrypts ? "required" : "off"); };
  return {Code::kMismatch,
          "rank " + std::to_string(peer().rank) + " has " + setting(peer().encrypts) + ", this rank (" +
              std::to_string(hello_.rank) + ") has " + setting(hello_.encrypts) + "; set the same on all ranks",
          static_cast<int>(peer().rank), 0};
}

}  // namespace annulus
