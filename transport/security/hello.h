// Hello: what each end of a new connection says of itself, the form of that in bytes, and whether two hellos fit
// together. A hello proves nothing; the Handshake does.
//
// Threads: plain values and functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/identity.h"
#include "base/library.h"
#include "base/status.h"

namespace annulus {

// First minor version whose links may be made again.
constexpr uint16_t kMinorThatResumes = 1;

// The purpose of a connection. docs/wire_protocol.md lists the numbers; each transport has one for its links.
struct Purpose {
  uint8_t number = 0;
  const char* name = "unknown";  // For messages.
};
inline constexpr Purpose kRendezvousPurpose = {1, "rendezvous"};

struct Hello {
  uint16_t version_major = 2;  // Must be equal on both sides. Versions: docs/wire_protocol.md.
  uint16_t version_minor = 1;
  Purpose purpose = {};      // Its number must be equal on both sides.
  Identity identity = {};    // Must be equal on both sides. The run's id has at most JobRun::kMostBytes.
  uint32_t nranks = 0;       // Must be equal on both sides.
  uint32_t rank = 0;         // The speaker.
  uint32_t target_rank = 0;  // The rank that the speaker believes it talks to.
  uint16_t channel = 0;
  uint16_t lane = 0;      // Index of the socket within its link.
  bool encrypts = false;  // Seals what follows the handshake. Must be equal on both sides.
  // 0 for the first connection of that lane; greater for each one that is to take its place.
  uint32_t connection = 0;
  // The speaker's; told, not compared here. Its file is not sent.
  LibraryVersion library_version = ThisLibrary().version;
  std::array<std::byte, Library::kBuildBytes> library_build = ThisLibrary().build;
};

enum class HandshakeRole { kInitiator, kAcceptor };

// What kind of peer was refused. All of it is unproven, except for kUnlike.
enum class RefusedPeer {
  kNobody,
  kStranger,    // Not an Annulus hello.
  kOtherRun,    // A rank of another run.
  kEarlierRun,  // A rank of this run from before a restart: its successor may still come.
  kUnlike,      // A rank of this job, which has proven itself, and encrypts where this one does not, or vice versa.
  kOther,
};

// A hello as it was received.
struct PeerHello {
  Hello hello;
  uint8_t role = 0;      // The role byte, of any value.
  bool has_key = false;  // Whether the peer claims to have a job key.

  // Who the peer claims to be, for messages.
  std::string Name() const { return "rank " + std::to_string(hello.rank) + " (unproven)"; }
};

constexpr size_t kHelloBytes = 176;
// Magic and version: the part that is the same in every version.
constexpr size_t kHelloPrefixBytes = 12;
using HelloBytes = std::array<std::byte, kHelloBytes>;
using HelloNonce = std::array<unsigned char, 32>;

HelloBytes EncodeHello(const Hello& hello, HandshakeRole role, bool has_key, const HelloNonce& nonce);

// Reads the versions from the first kHelloPrefixBytes. Returns false when this is no hello.
bool DecodeHelloPrefix(std::span<const std::byte> prefix, Hello* hello);
// Reads everything else, of a hello of our own major version.
void DecodeHello(const HelloBytes& bytes, PeerHello* peer);

// Whether the peer's hello fits our own, which was sent or will be sent in `role`.
// Errors: kProtocol with what differs; kMismatch for another run, whose kind is then in `refused`.
Status CheckHello(const Hello& own, HandshakeRole role, const PeerHello& peer, RefusedPeer* refused);

}  // namespace annulus
