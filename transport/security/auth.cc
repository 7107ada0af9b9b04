// The hello's fields in their order, what each side checks of it, and the proofs (docs/wire_protocol.md, "Handshake").
#include "transport/security/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace annulus {
namespace {

// Magic and versions keep their position in every future version.
constexpr std::array<char, 8> kMagic = {'A', 'N', 'N', 'U', 'L', 'U', 'S', '\n'};

constexpr uint8_t kInitiatorByte = 1;
constexpr uint8_t kAcceptorByte = 2;

// The speaker has a job key. This flag only makes the message about a forgotten key clear; the proof is what counts.
constexpr uint16_t kHasKeyFlag = 1;

// The labels differ but have the same length: neither side's proof can be passed off as the other's.
constexpr std::array<char, 16> kInitiatorLabel = {"annulus  dials "};
constexpr std::array<char, 16> kAcceptorLabel = {"annulus accepts"};

std::string Version(unsigned major, unsigned minor) { return std::to_string(major) + "." + std::to_string(minor); }

}  // namespace

Handshake::Handshake(Role role, const std::string& key, const Hello& hello) : role_(role), key_(key), hello_(hello) {
  if (RAND_bytes(nonce_.data(), static_cast<int>(nonce_.size())) != 1) {
    failed_ = true;
    in_wanted_ = 0;
    return;
  }
  if (role_ == Role::kInitiator) QueueHello();
}

std::span<const std::byte> Handshake::Output() const {
  return std::span(out_).subspan(out_begin_, out_end_ - out_begin_);
}

void Handshake::Sent(size_t bytes) {
  ANNULUS_CHECK(bytes <= out_end_ - out_begin_);
  out_begin_ += bytes;
  if (out_begin_ == out_end_) out_begin_ = out_end_ = 0;
}

size_t Handshake::Wants() const { return in_wanted_ - in_bytes_; }

Handshake::State Handshake::state() const {
  if (failed_) return State::kFailed;
  return verified_ && out_begin_ == out_end_ ? State::kDone : State::kRunning;
}

Status Handshake::Feed(std::span<const std::byte> bytes) {
  if (failed_) return {Code::kSystem, "the system has no random bytes for a handshake, or it failed before"};
  ANNULUS_CHECK(bytes.size() <= Wants());
  std::copy(bytes.begin(), bytes.end(), in_.begin() + in_bytes_);
  in_bytes_ += bytes.size();
  if (Wants() > 0 || verified_) return Status();
  in_bytes_ = 0;
  Status status = have_hello_ ? TakeMac() : TakeHello();
  if (!status.ok()) {
    failed_ = true;
    in_wanted_ = 0;
  }
  return status;
}

void Handshake::QueueHello() {
  FixedWriter out(own_bytes_);
  out.Bytes(std::as_bytes(std::span(kMagic))).U16(hello_.version_major).U16(hello_.version_minor);
  out.U8(role_ == Role::kInitiator ? kInitiatorByte : kAcceptorByte).U8(hello_.purpose.number);
  out.U16(key_.empty() ? 0 : kHasKeyFlag).U64(hello_.job_id).U32(hello_.nranks).U32(hello_.rank);
  out.U32(hello_.target_rank).U16(hello_.channel).U16(hello_.lane).U64(0).Bytes(std::as_bytes(std::span(nonce_)));
  ANNULUS_CHECK(out.full());
  ANNULUS_CHECK(out_end_ + kHelloBytes <= out_.size());
  std::memcpy(out_.data() + out_end_, own_bytes_.data(), kHelloBytes);
  out_end_ += kHelloBytes;
}

void Handshake::QueueMac(Role author) {
  const std::array<std::byte, kMacBytes> mac = Mac(author);
  ANNULUS_CHECK(out_end_ + kMacBytes <= out_.size());
  std::memcpy(out_.data() + out_end_, mac.data(), kMacBytes);
  out_end_ += kMacBytes;
}

Status Handshake::TakeHello() {
  std::memcpy(peer_bytes_.data(), in_.data(), kHelloBytes);
  ByteReader in(peer_bytes_);
  std::array<std::byte, kMagic.size()> magic;
  in.Bytes(magic);
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    return {Code::kProtocol, "what was received is not an Annulus hello"};
  }
  peer_.version_major = in.U16();
  peer_.version_minor = in.U16();
  peer_role_ = in.U8();
  peer_.purpose.number = in.U8();
  peer_has_key_ = (in.U16() & kHasKeyFlag) != 0;
  peer_.job_id = in.U64();
  peer_.nranks = in.U32();
  peer_.rank = in.U32();
  peer_.target_rank = in.U32();
  peer_.channel = in.U16();
  peer_.lane = in.U16();
  if (role_ == Role::kAcceptor) {
    hello_.target_rank = peer_.rank;
    hello_.channel = peer_.channel;
    hello_.lane = peer_.lane;
    // Also sent when the check below fails, so that the initiator can name the difference.
    QueueHello();
  }
  ANNULUS_RETURN_IF_ERROR(CheckHello());
  have_hello_ = true;
  in_wanted_ = kMacBytes;
  if (role_ == Role::kAcceptor) QueueMac(Role::kAcceptor);
  return Status();
}

// Who the peer claims to be. Unproven, so for messages only.
std::string Handshake::PeerName() const { return "rank " + std::to_string(peer_.rank) + " (unproven)"; }

Status Handshake::CheckHello() const {
  auto differs = [this](const std::string& field, const std::string& theirs, const std::string& ours) {
    return Status(Code::kProtocol, PeerName() + " has another " + field + ": " + theirs + ", here it is " + ours);
  };
  if (peer_.version_major != hello_.version_major) {
    return differs("wire version", Version(peer_.version_major, peer_.version_minor),
                   Version(hello_.version_major, hello_.version_minor));
  }
  if (peer_role_ != (role_ == Role::kInitiator ? kAcceptorByte : kInitiatorByte)) {
    return {Code::kProtocol, PeerName() + " speaks in the wrong role; this may be an own hello sent back"};
  }
  if (peer_.purpose.number != hello_.purpose.number) {
    return differs("purpose", "number " + std::to_string(peer_.purpose.number),
                   "number " + std::to_string(hello_.purpose.number) + ", " + hello_.purpose.name);
  }
  if (peer_.job_id != hello_.job_id) {
    return differs("job id", std::to_string(peer_.job_id), std::to_string(hello_.job_id));
  }
  if (peer_.nranks != hello_.nranks) {
    return differs("number of ranks", std::to_string(peer_.nranks), std::to_string(hello_.nranks));
  }
  return CheckParties();
}

Status Handshake::CheckParties() const {
  if (peer_.rank >= hello_.nranks || peer_.rank == hello_.rank) {
    return {Code::kProtocol, "rank " + std::to_string(hello_.rank) + " of " + std::to_string(hello_.nranks) +
                                 " met a peer that calls itself rank " + std::to_string(peer_.rank)};
  }
  if (peer_.target_rank != hello_.rank) {
    return {Code::kProtocol, PeerName() + " wants rank " + std::to_string(peer_.target_rank) + ", this is rank " +
                                 std::to_string(hello_.rank)};
  }
  if (role_ == Role::kAcceptor) return Status();
  if (peer_.rank != hello_.target_rank) {
    return {Code::kProtocol, PeerName() + " answered where rank " + std::to_string(hello_.target_rank) + " should"};
  }
  if (peer_.channel != hello_.channel || peer_.lane != hello_.lane) {
    return {Code::kProtocol, PeerName() + " answered for another channel or lane"};
  }
  return Status();
}

Status Handshake::TakeMac() {
  const Role author = role_ == Role::kInitiator ? Role::kAcceptor : Role::kInitiator;
  const std::array<std::byte, kMacBytes> expected = Mac(author);
  if (CRYPTO_memcmp(in_.data(), expected.data(), kMacBytes) != 0) {
    const char* why = " holds another job key";
    if (!peer_has_key_ && !key_.empty()) why = " runs without a job key, this rank has one";
    if (peer_has_key_ && key_.empty()) why = " has a job key, this rank runs without one";
    return {Code::kAuth, PeerName() + why, static_cast<int>(peer_.rank), 0};
  }
  verified_ = true;
  in_wanted_ = 0;
  if (role_ == Role::kInitiator) QueueMac(Role::kInitiator);
  return Status();
}

std::array<std::byte, Handshake::kMacBytes> Handshake::Mac(Role author) const {
  const bool initiator = role_ == Role::kInitiator;
  std::array<std::byte, kInitiatorLabel.size() + 2 * kHelloBytes> text;
  FixedWriter out(text);
  out.Bytes(std::as_bytes(std::span(author == Role::kInitiator ? kInitiatorLabel : kAcceptorLabel)));
  out.Bytes(initiator ? own_bytes_ : peer_bytes_).Bytes(initiator ? peer_bytes_ : own_bytes_);
  ANNULUS_CHECK(out.full());
  std::array<std::byte, kMacBytes> mac;
  unsigned mac_bytes = 0;
  const unsigned char* made = HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                   reinterpret_cast<unsigned char*>(mac.data()), &mac_bytes);
  ANNULUS_CHECK(made != nullptr && mac_bytes == kMacBytes);
  return mac;
}

}  // namespace annulus
