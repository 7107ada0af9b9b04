// The hello's fields in their order, and what each side checks of it (docs/wire_protocol.md, "Handshake").
#include "transport/security/hello.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"

namespace annulus {
namespace {

// Magic and versions keep their position in every future version.
constexpr std::array<char, 8> kMagic = {'A', 'N', 'N', 'U', 'L', 'U', 'S', '\n'};
static_assert(kHelloPrefixBytes == kMagic.size() + 2 * sizeof(uint16_t));

// The speaker has a job key. This flag only makes the message about a forgotten key clear; the proof is what counts.
constexpr uint16_t kHasKeyFlag = 1;
constexpr uint16_t kEncryptsFlag = 2;

uint8_t ByteOf(HandshakeRole role) { return role == HandshakeRole::kInitiator ? 1 : 2; }

// The bytes of a run's id, filled with zeros.
using RunBytes = std::array<char, JobRun::kMostBytes>;

RunBytes ToBytes(const std::string& id) {
  RunBytes bytes{};
  std::copy_n(id.begin(), std::min(id.size(), bytes.size()), bytes.begin());
  return bytes;
}

Status Differs(const PeerHello& peer, const std::string& field, const std::string& theirs, const std::string& ours) {
  return {Code::kProtocol, peer.Name() + " has another " + field + ": " + theirs + ", here it is " + ours};
}

Status CheckIdentity(const Identity& own, const PeerHello& peer, RefusedPeer* refused) {
  const Identity& theirs = peer.hello.identity;
  if (theirs.run != own.run) {
    const bool earlier = theirs.run.id == own.run.id && theirs.run.restart < own.run.restart;
    *refused = earlier ? RefusedPeer::kEarlierRun : RefusedPeer::kOtherRun;
    return {Code::kMismatch,
            "this rank belongs to " + JobRunText(own.run) + ", " + peer.Name() + " to " + JobRunText(theirs.run)};
  }
  if (theirs.job != own.job) return Differs(peer, "job id", std::to_string(theirs.job), std::to_string(own.job));
  if (theirs.epoch == own.epoch) return Status();
  return Differs(peer, "epoch", std::to_string(theirs.epoch), std::to_string(own.epoch));
}

Status CheckParties(const Hello& own, HandshakeRole role, const PeerHello& peer) {
  const Hello& theirs = peer.hello;
  if (theirs.rank >= own.nranks || theirs.rank == own.rank) {
    return {Code::kProtocol, "rank " + std::to_string(own.rank) + " of " + std::to_string(own.nranks) +
                                 " met a peer that calls itself rank " + std::to_string(theirs.rank)};
  }
  if (theirs.target_rank != own.rank) {
    return {Code::kProtocol, peer.Name() + " wants rank " + std::to_string(theirs.target_rank) + ", this is rank " +
                                 std::to_string(own.rank)};
  }
  if (role == HandshakeRole::kAcceptor) return Status();
  if (theirs.rank != own.target_rank) {
    return {Code::kProtocol, peer.Name() + " answered where rank " + std::to_string(own.target_rank) + " should"};
  }
  if (theirs.channel != own.channel || theirs.lane != own.lane) {
    return {Code::kProtocol, peer.Name() + " answered for another channel or lane"};
  }
  return Status();
}

}  // namespace

HelloBytes EncodeHello(const Hello& hello, HandshakeRole role, bool has_key, const HelloNonce& nonce) {
  HelloBytes bytes;
  FixedWriter out(bytes);
  out.Bytes(std::as_bytes(std::span(kMagic))).U16(hello.version_major).U16(hello.version_minor);
  out.U8(ByteOf(role)).U8(hello.purpose.number);
  const unsigned flags = (has_key ? kHasKeyFlag : 0u) | (hello.encrypts ? kEncryptsFlag : 0u);
  out.U16(static_cast<uint16_t>(flags)).U64(hello.identity.job).U32(hello.nranks).U32(hello.rank);
  out.U32(hello.target_rank).U16(hello.channel).U16(hello.lane);
  out.U32(hello.identity.epoch).U32(hello.identity.run.restart);
  const RunBytes run = ToBytes(hello.identity.run.id);
  out.Bytes(std::as_bytes(std::span(run)));
  for (const uint16_t number : hello.library_version) out.U16(number);
  out.U16(0).Bytes(hello.library_build).U32(hello.connection).Bytes(std::as_bytes(std::span(nonce)));
  ANNULUS_CHECK(out.full());
  return bytes;
}

bool DecodeHelloPrefix(std::span<const std::byte> prefix, Hello* hello) {
  ByteReader in(prefix.first(kHelloPrefixBytes));
  std::array<std::byte, kMagic.size()> magic;
  in.Bytes(magic);
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) return false;
  hello->version_major = in.U16();
  hello->version_minor = in.U16();
  return true;
}

void DecodeHello(const HelloBytes& bytes, PeerHello* peer) {
  ByteReader in(std::span<const std::byte>(bytes).subspan(kHelloPrefixBytes));
  Hello& hello = peer->hello;
  peer->role = in.U8();
  hello.purpose.number = in.U8();
  const unsigned flags = in.U16();
  peer->has_key = (flags & kHasKeyFlag) != 0;
  hello.encrypts = (flags & kEncryptsFlag) != 0;
  hello.identity.job = in.U64();
  hello.nranks = in.U32();
  hello.rank = in.U32();
  hello.target_rank = in.U32();
  hello.channel = in.U16();
  hello.lane = in.U16();
  hello.identity.epoch = in.U32();
  hello.identity.run.restart = in.U32();
  RunBytes run;
  in.Bytes(std::as_writable_bytes(std::span(run)));
  hello.identity.run.id.assign(run.begin(), std::find(run.begin(), run.end(), '\0'));
  for (uint16_t& number : hello.library_version) number = in.U16();
  in.U16();
  in.Bytes(hello.library_build);
  hello.connection = in.U32();
}

Status CheckHello(const Hello& own, HandshakeRole role, const PeerHello& peer, RefusedPeer* refused) {
  const bool initiates = role == HandshakeRole::kInitiator;
  if (peer.role != ByteOf(initiates ? HandshakeRole::kAcceptor : HandshakeRole::kInitiator)) {
    return {Code::kProtocol, peer.Name() + " speaks in the wrong role; this may be an own hello sent back"};
  }
  if (peer.hello.purpose.number != own.purpose.number) {
    return Differs(peer, "purpose", "number " + std::to_string(peer.hello.purpose.number),
                   "number " + std::to_string(own.purpose.number) + ", " + own.purpose.name);
  }
  ANNULUS_RETURN_IF_ERROR(CheckIdentity(own.identity, peer, refused));
  if (peer.hello.nranks != own.nranks) {
    return Differs(peer, "number of ranks", std::to_string(peer.hello.nranks), std::to_string(own.nranks));
  }
  return CheckParties(own, role, peer);
}

}  // namespace annulus
