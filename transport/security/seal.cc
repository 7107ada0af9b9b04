#include "transport/security/seal.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/check.h"

namespace annulus {
namespace {

// A whole record with its header, authentication and a change of keys before it.
constexpr size_t kMostSealed = Seal::kMostInRecord + 512;
// Sealed bytes of each direction that wait in OpenSSL's buffers: so much goes through one system call.
constexpr size_t kBufferBytes = 4 * kMostSealed;

constexpr char kCiphers[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherNumber[] = {0x13, 0x01};
constexpr char kGroups[] = "X25519:P-256";
constexpr unsigned char kIdentity[] = {'a', 'n', 'n', 'u', 'l', 'u', 's'};

// OpenSSL keeps a list of errors for each thread. Ours do not stay there, and the program's own do, except that TLS
// clears the list during a handshake.
class KeepErrors {
 public:
  KeepErrors() { ERR_set_mark(); }
  KeepErrors(const KeepErrors&) = delete;
  KeepErrors& operator=(const KeepErrors&) = delete;
  ~KeepErrors() { ERR_pop_to_mark(); }
};

const Seal::Key& KeyOf(SSL* ssl) { return *static_cast<const Seal::Key*>(SSL_get_app_data(ssl)); }

// What TLS calls a session, with nothing in it but the key. Null when there is no memory.
SSL_SESSION* SessionOf(SSL* ssl) {
  SSL_SESSION* session = SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  const Seal::Key& key = KeyOf(ssl);
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kCipherNumber);
  if (cipher != nullptr && SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
      SSL_SESSION_set1_id_context(session, kIdentity, sizeof kIdentity) == 1 &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()), key.size()) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int UseKey(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* id_bytes, SSL_SESSION** session) {
  *session = SessionOf(ssl);
  *id = kIdentity;
  *id_bytes = sizeof kIdentity;
  return *session != nullptr ? 1 : 0;
}

int FindKey(SSL* ssl, const unsigned char* id, size_t id_bytes, SSL_SESSION** session) {
  const bool is_known = id_bytes == sizeof kIdentity && std::memcmp(id, kIdentity, id_bytes) == 0;
  *session = is_known ? SessionOf(ssl) : nullptr;
  return 1;
}

// Null when OpenSSL cannot do what is needed.
SSL_CTX* MakeContext() {
  SSL_CTX* const made = SSL_CTX_new(TLS_method());
  if (made == nullptr) return nullptr;
  SSL_CTX_set_psk_use_session_callback(made, UseKey);
  SSL_CTX_set_psk_find_session_callback(made, FindKey);
  SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Who has no key and shows a certificate is nobody.
  SSL_CTX_set_verify(made, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // Keys without an exchange of their own would be readable to whoever learns the job key.
  SSL_CTX_clear_options(made, SSL_OP_ALLOW_NO_DHE_KEX);
  const bool is_set = SSL_CTX_set_session_id_context(made, kIdentity, sizeof kIdentity) == 1 &&
                      SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) == 1 &&
                      SSL_CTX_set_max_proto_version(made, TLS1_3_VERSION) == 1 &&
                      SSL_CTX_set_ciphersuites(made, kCiphers) == 1 && SSL_CTX_set1_groups_list(made, kGroups) == 1 &&
                      SSL_CTX_set_num_tickets(made, 0) == 1;
  if (is_set) return made;
  SSL_CTX_free(made);
  return nullptr;
}

std::string LatestError() {
  char text[256];
  ERR_error_string_n(ERR_peek_last_error(), text, sizeof text);
  return text;
}

}  // namespace

Status Seal::Create(HandshakeRole role, const Key& key, uint64_t records_per_key, std::unique_ptr<Seal>* seal) {
  const KeepErrors keep;
  SSL_CTX* const context = MakeContext();  // One for each seal, so that the process keeps nothing.
  SSL* const ssl = context != nullptr ? SSL_new(context) : nullptr;
  SSL_CTX_free(context);  // `ssl` keeps it.
  BIO* inside = nullptr;
  BIO* outside = nullptr;
  if (ssl == nullptr || BIO_new_bio_pair(&inside, kBufferBytes, &outside, kBufferBytes) != 1) {
    const std::string why = LatestError();
    SSL_free(ssl);
    return {Code::kSystem, "OpenSSL cannot encrypt here: " + why};
  }
  SSL_set_bio(ssl, inside, inside);
  role == HandshakeRole::kInitiator ? SSL_set_connect_state(ssl) : SSL_set_accept_state(ssl);
  seal->reset(new Seal(ssl, outside, key, records_per_key));
  return Status();
}

Seal::Seal(SSL* ssl, BIO* outside, const Key& key, uint64_t records_per_key)
    : ssl_(ssl), outside_(outside), key_(key), records_per_key_(records_per_key) {
  SSL_set_app_data(ssl_, &key_);
}

Seal::~Seal() {
  const KeepErrors keep;
  SSL_free(ssl_);  // With the inner end of the buffers.
  BIO_free(outside_);
  explicit_bzero(key_.data(), key_.size());
  explicit_bzero(record_.data(), record_.size());
}

bool Seal::holds_output() const { return BIO_ctrl_pending(outside_) > 0; }

Status Seal::Shake(int fd) {
  const KeepErrors keep;
  for (;;) {
    const int done = SSL_do_handshake(ssl_);
    const std::string why = done == 1 || SSL_want_read(ssl_) ? "" : LatestError();
    if (!Flush(fd)) {
      if (errno_ == 0) return Status::WouldBlock();
      return {Code::kPeerLost, std::string("the connection ended: ") + std::strerror(errno_)};
    }
    if (!why.empty()) return {Code::kAuth, "TLS: " + why};
    if (done == 1) {
      if (SSL_session_reused(ssl_) == 1) return Status();
      return {Code::kAuth, "TLS: the other end does not use the job's key"};
    }
    if (Fill(fd) > 0) continue;
    if (!has_ended_) return Status::WouldBlock();
    return {Code::kPeerLost, errno_ == 0 ? "the connection was closed" : std::strerror(errno_)};
  }
}

ssize_t Seal::Send(int fd, const iovec* pieces, size_t count) {
  const KeepErrors keep;
  size_t sent = 0;
  for (;;) {
    if (begun_ == 0) begun_ = SealSome(pieces, count, sent);
    if (begun_ == 0 || !Flush(fd)) break;
    sent += std::exchange(begun_, 0);
  }
  if (sent > 0) return static_cast<ssize_t>(sent);
  if (begun_ == 0) NoteError(EPROTO);
  errno = errno_ != 0 ? errno_ : EAGAIN;
  return -1;
}

// Seals what follows the first `skip` bytes, as much as there is room for. Returns how many bytes that is.
size_t Seal::SealSome(const iovec* pieces, size_t count, size_t skip) {
  size_t sealed = 0;
  size_t filled = 0;  // Bytes of record_ that are filled.
  for (size_t i = 0; i < count; ++i) {
    const size_t skipped = std::min(skip, pieces[i].iov_len);
    skip -= skipped;
    const std::byte* data = static_cast<const std::byte*>(pieces[i].iov_base) + skipped;
    for (size_t left = pieces[i].iov_len - skipped; left > 0;) {
      if (filled == 0 && BIO_ctrl_get_write_guarantee(SSL_get_wbio(ssl_)) < kMostSealed) return sealed;
      const size_t bytes = std::min(left, kMostInRecord - filled);
      const bool is_whole = bytes == kMostInRecord;  // It need not be copied.
      if (!is_whole) std::memcpy(record_.data() + filled, data, bytes);
      filled += bytes;
      if (filled == kMostInRecord) {
        if (!SealRecord(is_whole ? data : record_.data(), filled)) return sealed;
        sealed += std::exchange(filled, 0);
      }
      data += bytes;
      left -= bytes;
    }
  }
  if (filled > 0 && SealRecord(record_.data(), filled)) sealed += filled;
  return sealed;
}

bool Seal::SealRecord(const std::byte* data, size_t bytes) {
  if (records_ == records_per_key_) {
    // Only this direction's: to answer a request, the peer would have to write while it reads.
    if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return false;
    records_ = 0;
  }
  ++records_;
  return SSL_write(ssl_, data, static_cast<int>(bytes)) == static_cast<int>(bytes);
}

void Seal::NoteError(int error) {
  if (errno_ == 0) errno_ = error;
}

bool Seal::Flush(int fd) {
  for (;;) {
    char* data = nullptr;
    const int held = BIO_nread0(outside_, &data);
    if (held <= 0) return true;
    const ssize_t sent = send(fd, data, static_cast<size_t>(held), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) NoteError(errno);
    if (sent < 0) return false;
    BIO_nread(outside_, &data, static_cast<int>(sent));
  }
}

size_t Seal::Fill(int fd) {
  if (has_ended_) return 0;
  char* room = nullptr;
  const int bytes = BIO_nwrite0(outside_, &room);
  ANNULUS_CHECK(bytes > 0);  // OpenSSL has taken all that came before.
  ssize_t got = 0;
  do {
    got = recv(fd, room, static_cast<size_t>(bytes), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  is_drained_ = got < bytes;
  has_ended_ = got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
  if (got < 0 && has_ended_) NoteError(errno);
  if (got <= 0) return 0;
  BIO_nwrite(outside_, &room, static_cast<int>(got));
  return static_cast<size_t>(got);
}

size_t Seal::ReceivePiece(int fd, std::byte* to, size_t bytes) {
  size_t received = 0;
  while (received < bytes) {
    const int most = static_cast<int>(std::min(bytes - received, kBufferBytes));
    const int got = SSL_read(ssl_, to + received, most);
    if (got > 0) {
      received += static_cast<size_t>(got);
    } else if (!SSL_want_read(ssl_)) {
      has_ended_ = true;
      NoteError(EBADMSG);
      break;
    } else if (is_drained_ || Fill(fd) == 0) {
      break;
    }
  }
  return received;
}

ssize_t Seal::Receive(int fd, const iovec* pieces, size_t count) {
  const KeepErrors keep;
  size_t received = 0;
  is_drained_ = false;
  for (size_t i = 0; i < count; ++i) {
    const size_t got = ReceivePiece(fd, static_cast<std::byte*>(pieces[i].iov_base), pieces[i].iov_len);
    received += got;
    if (got < pieces[i].iov_len) break;
  }
  if (received > 0) return static_cast<ssize_t>(received);
  if (has_ended_ && errno_ == 0) return 0;
  errno = has_ended_ ? errno_ : EAGAIN;
  return -1;
}

}  // namespace annulus
