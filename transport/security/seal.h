// Seal: encrypts and authenticates the bytes of one connection in both directions, by OpenSSL's TLS 1.3.
//
// Both ends have proven themselves before (Handshake). The key that they give to TLS is made of the job key and of both
// hellos, so it belongs to this connection alone; TLS adds an exchange of keys of its own, so that who learns the job
// key later cannot read what was recorded. There are no certificates, and no other version or cipher is spoken.
//
// Send and Receive take the place of sendmsg and recvmsg on a non-blocking socket. Whatever arrives that the peer has
// not sealed, or not in this order, ends the connection; none of it is ever delivered.
//
// Threads: one at a time. After the handshake nothing allocates, save for OpenSSL where keys change.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "transport/security/hello.h"

struct bio_st;
struct ssl_st;

namespace annulus {

class Seal {
 public:
  using Key = std::array<std::byte, 32>;

  // Largest amount of data in one record, by RFC 8446, 5.1.
  static constexpr size_t kMostInRecord = size_t{16} << 10;
  // Memory that a seal holds, at most, in bytes.
  static constexpr size_t kMemoryBytes = size_t{240} << 10;
  // Each end changes the key of its direction after so many records. RFC 8446, 5.5 allows 2^24.5 with AES-GCM.
  static constexpr uint64_t kRecordsPerKey = uint64_t{1} << 24;

  // The end that dialled is the initiator. Errors: kSystem, when OpenSSL cannot do what is needed.
  static Status Create(HandshakeRole role, const Key& key, uint64_t records_per_key, std::unique_ptr<Seal>* seal);
  static Status Create(HandshakeRole role, const Key& key, std::unique_ptr<Seal>* seal) {
    return Create(role, key, kRecordsPerKey, seal);
  }
  Seal(const Seal&) = delete;
  Seal& operator=(const Seal&) = delete;
  ~Seal();

  // Takes the handshake of TLS as far as possible. WouldBlock: call it again when the socket can be written, if
  // holds_output(), else when it can be read. Errors: kPeerLost; kAuth, when the other end has no such key.
  Status Shake(int fd);

  // Like sendmsg with a list that is not empty: returns how many bytes went out, or -1 and errno. What is said to have
  // gone out is in the kernel. After a call that sent less than there was, the next list begins with the first byte
  // that did not go out, and has no fewer bytes.
  ssize_t Send(int fd, const iovec* pieces, size_t count);
  // Like recvmsg with a list that is not empty: returns how many bytes came, 0 at the end of the connection, or -1 and
  // errno, which is EBADMSG for anything that the peer has not sealed. Less than there is room for: there is no more
  // now.
  ssize_t Receive(int fd, const iovec* pieces, size_t count);

  // Whether sealed bytes wait for the kernel.
  bool holds_output() const;
  // Whether something came that the peer has not sealed. Receive says so once all that came before is read.
  bool has_failed() const { return errno_ != 0; }
  // For a connection that broke: how many bytes were sealed, of which Send has not said that they went out. The peer
  // may have some of them.
  size_t TakeBegun() { return std::exchange(begun_, 0); }

 private:
  Seal(ssl_st* ssl, bio_st* outside, const Key& key, uint64_t records_per_key);

  size_t SealSome(const iovec* pieces, size_t count, size_t skip);
  bool SealRecord(const std::byte* data, size_t bytes);
  void NoteError(int error);
  bool Flush(int fd);
  // Returns the number of bytes that came; 0 at the end or when there are none, which errno tells apart.
  size_t Fill(int fd);
  size_t ReceivePiece(int fd, std::byte* to, size_t bytes);

  ssl_st* const ssl_;
  bio_st* const outside_;  // The end of OpenSSL's pair of buffers at which sealed bytes come out and go in.
  Key key_;
  const uint64_t records_per_key_;
  uint64_t records_ = 0;  // Sent with the present key.
  size_t begun_ = 0;
  bool is_drained_ = false;  // The kernel has nothing more to read now.
  bool has_ended_ = false;   // Nothing more can be received.
  // The first one of either direction. The kernel says what went wrong once, and the call that was told may have had
  // bytes to return.
  int errno_ = 0;
  std::array<std::byte, kMostInRecord> record_;  // Where small pieces are put together.
};

}  // namespace annulus
