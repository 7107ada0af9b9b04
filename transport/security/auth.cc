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
static_assert(Handshake::kPrefixBytes == kMagic.size() + 2 * sizeof(uint16_t));

constexpr uint8_t kInitiatorByte = 1;
constexpr uint8_t kAcceptorByte = 2;

// The speaker has a job key. This flag only makes the message about a forgotten key clear; the proof is what counts.
constexpr uint16_t kHasKeyFlag = 1;

// The labels differ but have the same length: neither side's proof can be passed off as the other's.
constexpr std::array<char, 16> kInitiatorLabel = {"annulus  dials "};
constexpr std::array<char, 16> kAcceptorLabel = {"annulus accepts"};

std::string Version(unsigned major, unsigned minor) { return std::to_string(major) + "." + std::to_string(minor); }

// The bytes of a run's id, filled with zeros.
using RunBytes = std::array<char, JobRun::kMostBytes>;

RunBytes ToBytes(const std::string& id) {
  RunBytes bytes{};
  std::copy_n(id.begin(), std::min(id.size(), bytes.size()), bytes.begin());
  return bytes;
}

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
  Status status;
  if (have_hello_) {
    status = TakeMac();
  } else {
    status = in_wanted_ == kPrefixBytes ? TakePrefix() : TakeHello();
  }
  if (!status.ok()) {
    if (refused_ == Refused::kNobody) refused_ = Refused::kOther;
    in_bytes_ = 0;
    failed_ = true;
    in_wanted_ = 0;
  }
  return status;
}

void Handshake::QueueHello() {
  FixedWriter out(own_bytes_);
  out.Bytes(std::as_bytes(std::span(kMagic))).U16(hello_.version_major).U16(hello_.version_minor);
  out.U8(role_ == Role::kInitiator ? kInitiatorByte : kAcceptorByte).U8(hello_.purpose.number);
  out.U16(key_.empty() ? 0 : kHasKeyFlag).U64(hello_.identity.job).U32(hello_.nranks).U32(hello_.rank);
  out.U32(hello_.target_rank).U16(hello_.channel).U16(hello_.lane);
  out.U32(hello_.identity.epoch).U32(hello_.identity.run.restart);
  const RunBytes run = ToBytes(hello_.identity.run.id);
  out.Bytes(std::as_bytes(std::span(run)));
  for (const uint16_t number : hello_.library_version) out.U16(number);
  out.U16(0).Bytes(hello_.library_build).U32(0).Bytes(std::as_bytes(std::span(nonce_)));
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

// A hello of another major version may be shorter or longer, so this is all that is read of it.
Status Handshake::TakePrefix() {
  ByteReader in(std::span<const std::byte>(in_).first(kPrefixBytes));
  std::array<std::byte, kMagic.size()> magic;
  in.Bytes(magic);
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    refused_ = Refused::kStranger;
    return {Code::kProtocol, "what was received is not an Annulus hello"};
  }
  peer_.version_major = in.U16();
  peer_.version_minor = in.U16();
  in_wanted_ = kHelloBytes;
  if (peer_.version_major == hello_.version_major) return Status();
  if (role_ == Role::kAcceptor) QueueHello();
  return {Code::kProtocol, "the peer's library (unproven) speaks wire version " +
                               Version(peer_.version_major, peer_.version_minor) + ", that of this rank, Annulus " +
                               LibraryText(ThisLibrary()) + ", speaks " +
                               Version(hello_.version_major, hello_.version_minor)};
}

Status Handshake::TakeHello() {
  std::memcpy(peer_bytes_.data(), in_.data(), kHelloBytes);
  in_bytes_ = 0;
  ByteReader in(std::span<const std::byte>(peer_bytes_).subspan(kPrefixBytes));
  peer_role_ = in.U8();
  peer_.purpose.number = in.U8();
  peer_has_key_ = (in.U16() & kHasKeyFlag) != 0;
  peer_.identity.job = in.U64();
  peer_.nranks = in.U32();
  peer_.rank = in.U32();
  peer_.target_rank = in.U32();
  peer_.channel = in.U16();
  peer_.lane = in.U16();
  peer_.identity.epoch = in.U32();
  peer_.identity.run.restart = in.U32();
  RunBytes run;
  in.Bytes(std::as_writable_bytes(std::span(run)));
  peer_.identity.run.id.assign(run.begin(), std::find(run.begin(), run.end(), '\0'));
  for (uint16_t& number : peer_.library_version) number = in.U16();
  in.U16();
  in.Bytes(peer_.library_build);
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

Status Handshake::CheckHello() {
  auto differs = [this](const std::string& field, const std::string& theirs, const std::string& ours) {
    return Status(Code::kProtocol, PeerName() + " has another " + field + ": " + theirs + ", here it is " + ours);
  };
  if (peer_role_ != (role_ == Role::kInitiator ? kAcceptorByte : kInitiatorByte)) {
    return {Code::kProtocol, PeerName() + " speaks in the wrong role; this may be an own hello sent back"};
  }
  if (peer_.purpose.number != hello_.purpose.number) {
    return differs("purpose", "number " + std::to_string(peer_.purpose.number),
                   "number " + std::to_string(hello_.purpose.number) + ", " + hello_.purpose.name);
  }
  ANNULUS_RETURN_IF_ERROR(CheckIdentity());
  if (peer_.nranks != hello_.nranks) {
    return differs("number of ranks", std::to_string(peer_.nranks), std::to_string(hello_.nranks));
  }
  return CheckParties();
}

Status Handshake::CheckIdentity() {
  const Identity& own = hello_.identity;
  const Identity& theirs = peer_.identity;
  if (theirs.run != own.run) {
    const bool earlier = theirs.run.id == own.run.id && theirs.run.restart < own.run.restart;
    refused_ = earlier ? Refused::kEarlierRun : Refused::kOtherRun;
    return {Code::kMismatch,
            "this rank belongs to " + RunText(own.run) + ", " + PeerName() + " to " + RunText(theirs.run)};
  }
  const auto differs = [&](const char* field, uint64_t other, uint64_t here) {
    return Status(Code::kProtocol, PeerName() + " has another " + field + ": " + std::to_string(other) +
                                       ", here it is " + std::to_string(here));
  };
  if (theirs.job != own.job) return differs("job id", theirs.job, own.job);
  return theirs.epoch == own.epoch ? Status() : differs("epoch", theirs.epoch, own.epoch);
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
  in_bytes_ = 0;
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
