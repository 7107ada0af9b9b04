// Handshake: the mutual proof of the job key that opens every connection, before anything else is trusted.
//
//   initiator -> acceptor   hello   (who I am, whom I want, nonce)
//   acceptor -> initiator   hello   (the same, nonce) and HMAC-SHA256 over both hellos
//   initiator -> acceptor   HMAC-SHA256 over both hellos, under another label
//
// Each HMAC covers both sides' fresh nonces, so a recorded handshake proves nothing later. Format:
// docs/wire_protocol.md.
//
// A pure state machine: no sockets, no clock. The owner of the socket feeds it and limits its time.
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/identity.h"
#include "base/library.h"
#include "base/status.h"

namespace annulus {

// The purpose of a connection. docs/wire_protocol.md lists the numbers; each transport has one for its links.
struct Purpose {
  uint8_t number = 0;
  const char* name = "unknown";  // For messages.
};
inline constexpr Purpose kRendezvousPurpose = {1, "rendezvous"};

struct Hello {
  uint16_t version_major = 2;  // Must be equal on both sides. Versions: docs/wire_protocol.md.
  uint16_t version_minor = 0;
  Purpose purpose = {};      // Its number must be equal on both sides.
  Identity identity = {};    // Must be equal on both sides. The run's id has at most JobRun::kMostBytes.
  uint32_t nranks = 0;       // Must be equal on both sides.
  uint32_t rank = 0;         // The speaker.
  uint32_t target_rank = 0;  // The rank that the speaker believes it talks to.
  uint16_t channel = 0;
  uint16_t lane = 0;  // Index of the socket within its link.
  // The speaker's; told, not compared here. Its file is not sent.
  LibraryVersion library_version = ThisLibrary().version;
  std::array<std::byte, Library::kBuildBytes> library_build = ThisLibrary().build;
};

class Handshake {
 public:
  static constexpr size_t kHelloBytes = 176;
  // Magic and version: the part that is the same in every version.
  static constexpr size_t kPrefixBytes = 12;
  static constexpr size_t kMacBytes = 32;

  enum class Role { kInitiator, kAcceptor };
  enum class State { kRunning, kDone, kFailed };
  // What kind of peer was refused. All of it is unproven.
  enum class Refused {
    kNobody,
    kStranger,    // Not an Annulus hello.
    kOtherRun,    // A rank of another run.
    kEarlierRun,  // A rank of this run from before a restart: its successor may still come.
    kOther,
  };

  // `key` may be empty (insecure mode): the exchange is then the same under a publicly known key, and proves nothing.
  // An acceptor's own `hello` provides purpose, identity, nranks and rank; target_rank, channel and lane are taken from
  // the peer.
  Handshake(Role role, const std::string& key, const Hello& hello);

  // Bytes to send to the peer now; call Sent() with how many of them went out.
  std::span<const std::byte> Output() const;
  void Sent(size_t bytes);

  // How many bytes the handshake wants next. Never read more than this: the bytes that follow belong to the session.
  size_t Wants() const;
  // Takes up to Wants() bytes from the peer. Errors: kProtocol (not a hello, other version, job, purpose or size),
  // kMismatch (another run), kAuth (wrong key).
  Status Feed(std::span<const std::byte> bytes);

  // kDone requires Output() to be empty too. In state kFailed, Output() may hold a hello that tells the peer what
  // differs: make one attempt to send it before closing.
  State state() const;
  Refused refused() const { return refused_; }
  // The peer's hello. Valid and trustworthy only in state kDone.
  const Hello& peer() const { return peer_; }
  // The lower of the two sides' minor versions, which both can speak. Valid when peer() is.
  uint16_t session_minor() const { return std::min(hello_.version_minor, peer_.version_minor); }

 private:
  void QueueHello();
  void QueueMac(Role author);
  Status TakePrefix();
  Status TakeHello();
  Status CheckHello();
  Status CheckIdentity();
  Status CheckParties() const;
  Status TakeMac();
  std::string PeerName() const;
  std::array<std::byte, kMacBytes> Mac(Role author) const;

  const Role role_;
  const std::string key_;
  Hello hello_;
  Hello peer_;
  std::array<unsigned char, 32> nonce_{};
  std::array<std::byte, kHelloBytes> own_bytes_{};
  std::array<std::byte, kHelloBytes> peer_bytes_{};
  uint8_t peer_role_ = 0;      // From its hello.
  bool peer_has_key_ = false;  // As its hello claims, unproven.
  std::array<std::byte, kHelloBytes + kMacBytes> out_{};
  size_t out_begin_ = 0;
  size_t out_end_ = 0;
  std::array<std::byte, kHelloBytes> in_{};
  size_t in_bytes_ = 0;
  size_t in_wanted_ = kPrefixBytes;
  Refused refused_ = Refused::kNobody;
  bool have_hello_ = false;
  bool verified_ = false;
  bool failed_ = false;
};

}  // namespace annulus
