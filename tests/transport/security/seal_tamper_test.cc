// Tests of Seal: nothing arrives but what the peer has sealed, in its order, and nobody is a peer without the key.
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <vector>

#include "tests/transport/security/seal_pair.h"
#include "transport/security/seal.h"

namespace annulus {
namespace {

using SealTamperTest = SealPair;

// Little room in the kernel: what went out only in part is said to have gone out when the rest has, and never twice.
TEST_F(SealTamperTest, TamperingWithAnyByteOfARecordEndsIt) {
  Shake();
  const size_t bytes = 40;
  const size_t record = bytes + 22;
  for (size_t at = 0; at < record; ++at) {
    for (const std::byte flip : {std::byte{1}, std::byte{0x80}}) {
      End dialling(HandshakeRole::kInitiator);
      End accepting(HandshakeRole::kAcceptor);
      Shake(&dialling, &accepting);
      ASSERT_EQ(dialling.Send(Pattern(bytes)), static_cast<ssize_t>(bytes));
      Bytes wire = dialling.TakeWire();
      ASSERT_EQ(wire.size(), record);
      wire[at] ^= flip;
      // A length that has grown is waited for.
      if (at == 3 || at == 4) wire.resize(record + 70'000);
      accepting.PutWire(wire);
      int error = 0;
      EXPECT_TRUE(accepting.Receive(1000, &error).empty()) << at;
      EXPECT_EQ(error, EBADMSG) << at;
      // For good, whatever follows.
      EXPECT_EQ(dialling.Send(Pattern(bytes)), static_cast<ssize_t>(bytes));
      accepting.PutWire(dialling.TakeWire());
      EXPECT_TRUE(accepting.Receive(1000, &error).empty()) << at;
      EXPECT_EQ(error, EBADMSG) << at;
    }
  }
}

TEST_F(SealTamperTest, ATruncatedRecordGivesNothing) {
  Shake();
  const Bytes wire = Records({100})[0];
  for (size_t bytes = 0; bytes < wire.size(); ++bytes) {
    int error = 0;
    EXPECT_TRUE(accepting_.Receive(1000, &error).empty()) << bytes;
    EXPECT_EQ(error, EAGAIN) << bytes;
    accepting_.PutWire({wire[bytes]});
  }
  int error = 0;
  EXPECT_EQ(accepting_.Receive(1000, &error), Pattern(100));
}

TEST_F(SealTamperTest, AnEndWithinARecordGivesNothing) {
  Shake();
  Bytes wire = Records({100})[0];
  wire.pop_back();
  accepting_.PutWire(wire);
  accepting_.EndWire();
  int error = 0;
  EXPECT_TRUE(accepting_.Receive(1000, &error).empty());
  EXPECT_EQ(error, EAGAIN);
  EXPECT_TRUE(accepting_.Receive(1000, &error).empty());
  EXPECT_EQ(error, 0);  // The end, as of a socket.
}

TEST_F(SealTamperTest, AReplayedRecordIsRefused) {
  Shake();
  const Bytes wire = Records({100})[0];
  accepting_.PutWire(wire);
  int error = 0;
  EXPECT_EQ(accepting_.Receive(1000, &error), Pattern(100));
  EXPECT_TRUE(Refuses(wire));
}

TEST_F(SealTamperTest, ALostRecordIsNoticed) {
  Shake();
  EXPECT_TRUE(Refuses(Records({100, 100})[1]));
}

TEST_F(SealTamperTest, RecordsInAnotherOrderAreRefused) {
  Shake();
  const std::vector<Bytes> records = Records({100, 200});
  Bytes wire = records[1];
  wire.insert(wire.end(), records[0].begin(), records[0].end());
  EXPECT_TRUE(Refuses(wire));
}

TEST_F(SealTamperTest, ARecordSentBackIsRefused) {
  Shake();
  const Bytes wire = Records({100})[0];
  int error = 0;
  dialling_.PutWire(wire);
  EXPECT_TRUE(dialling_.Receive(1000, &error).empty());
  EXPECT_EQ(error, EBADMSG);
}

TEST_F(SealTamperTest, ARecordOfAnotherConnectionIsRefused) {
  Shake();
  const Bytes wire = Records({100})[0];
  End dialling(HandshakeRole::kInitiator);
  End accepting(HandshakeRole::kAcceptor);
  Shake(&dialling, &accepting);  // With the same key: each connection adds a fresh exchange.
  accepting.PutWire(wire);
  int error = 0;
  EXPECT_TRUE(accepting.Receive(1000, &error).empty());
  EXPECT_EQ(error, EBADMSG);
}

TEST_F(SealTamperTest, PlainBytesAreRefused) {
  Shake();
  EXPECT_TRUE(Refuses(Pattern(1000)));
}

TEST_F(SealTamperTest, AnotherKeyIsRefused) {
  End accepting(HandshakeRole::kAcceptor, kOtherKey);
  Shake(&dialling_, &accepting);
  EXPECT_EQ(accepted_.code(), Code::kAuth) << accepted_.message();
  EXPECT_FALSE(dialled_.ok());
}

TEST_F(SealTamperTest, TamperingWithTheHandshakeIsNoticed) {
  Bytes hello;
  for (size_t at = 0; at == 0 || at < hello.size(); ++at) {
    End dialling(HandshakeRole::kInitiator);
    End accepting(HandshakeRole::kAcceptor);
    ASSERT_EQ(dialling.Shake().code(), Code::kInProgress);
    hello = dialling.TakeWire();
    hello[at] ^= std::byte{1};
    accepting.PutWire(hello);
    (void)accepting.Shake();
    Shake(&dialling, &accepting);
    // The version of the first record's header says nothing in TLS 1.3, and is the one thing that is not looked at.
    const bool is_ignored = at == 1 || at == 2;
    EXPECT_TRUE(!dialled_.ok() || !accepted_.ok() || is_ignored) << at;
  }
}

// A TLS endpoint that is none of ours.
class Foreign {
 public:
  Foreign(int fd, bool dials, const std::function<void(SSL_CTX*)>& prepare) : context_(SSL_CTX_new(TLS_method())) {
    SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION);
    prepare(context_);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd);
    dials ? SSL_set_connect_state(ssl_) : SSL_set_accept_state(ssl_);
  }
  ~Foreign() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  SSL* ssl() { return ssl_; }

 private:
  SSL_CTX* const context_;
  SSL* ssl_;
};

// The key as TLS's own callback for it gives it, with SHA-256.
unsigned GiveKey(SSL*, const char*, char* id, unsigned most_id, unsigned char* key, unsigned most_key) {
  EXPECT_LE(kKey.size(), most_key);
  std::strncpy(id, "annulus", most_id);
  std::memcpy(key, kKey.data(), kKey.size());
  return kKey.size();
}

Status ShakeWith(Foreign* foreign, End* end) {
  Status status = Status::WouldBlock();
  for (int turn = 0; turn < 10; ++turn) {
    (void)SSL_do_handshake(foreign->ssl());
    if (status.code() == Code::kInProgress) status = end->Shake();
  }
  ERR_clear_error();
  return status;
}

TEST_F(SealTamperTest, SpeaksTlsAsOthersDo) {
  Foreign client(accepting_.outside(), true, [](SSL_CTX* context) {
    SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_psk_client_callback(context, GiveKey);
  });
  const Status status = ShakeWith(&client, &accepting_);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_STREQ(SSL_get_version(client.ssl()), "TLSv1.3");
  EXPECT_STREQ(SSL_get_cipher(client.ssl()), "TLS_AES_128_GCM_SHA256");
  ASSERT_EQ(accepting_.Send(Pattern(100)), 100);
  Bytes data(100);
  EXPECT_EQ(SSL_read(client.ssl(), data.data(), 100), 100);
  EXPECT_EQ(data, Pattern(100));
}

// Forward secrecy is not for the other end to give up.
TEST_F(SealTamperTest, AKeyWithoutAnExchangeIsNotTaken) {
  Foreign client(accepting_.outside(), true, [](SSL_CTX* context) {
    SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_options(context, SSL_OP_ALLOW_NO_DHE_KEX);
    SSL_CTX_set_psk_client_callback(context, GiveKey);
  });
  // It offers both kinds.
  const Status status = ShakeWith(&client, &accepting_);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_NE(SSL_get_negotiated_group(client.ssl()), 0);
}

TEST_F(SealTamperTest, ACertificateIsNoKey) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  X509_gmtime_adj(X509_getm_notBefore(certificate), -100);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 10'000);
  X509_set_pubkey(certificate, key);
  ASSERT_GT(X509_sign(certificate, key, EVP_sha256()), 0);
  Foreign server(dialling_.outside(), false, [&](SSL_CTX* context) {
    ASSERT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
    ASSERT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
  });
  EXPECT_EQ(ShakeWith(&server, &dialling_).code(), Code::kAuth);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

}  // namespace
}  // namespace annulus
