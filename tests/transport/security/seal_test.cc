// Tests of Seal: what goes through it arrives, whatever the kernel takes at a time and whenever keys change.
#include "transport/security/seal.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "tests/transport/security/seal_pair.h"

namespace annulus {
namespace {

using SealTest = SealPair;

TEST_F(SealTest, WhatIsSentArrivesInBothDirections) {
  Shake();
  ASSERT_TRUE(dialled_.ok()) << dialled_.message();
  ASSERT_TRUE(accepted_.ok()) << accepted_.message();
  int error = 0;
  EXPECT_TRUE(accepting_.Receive(10, &error).empty());
  EXPECT_EQ(error, EAGAIN);
  for (const size_t bytes : {1, 5, 4096, 16383, 16384, 16385, 40000, 66000}) {
    for (auto [from, to] : {std::pair(&dialling_, &accepting_), std::pair(&accepting_, &dialling_)}) {
      const Bytes sent = Pattern(bytes);
      ASSERT_EQ(from->Send(sent), static_cast<ssize_t>(bytes));
      const Bytes wire = from->TakeWire();
      if (bytes > 4) {  // Fewer may be among encrypted bytes by chance.
        EXPECT_EQ(std::search(wire.begin(), wire.end(), sent.begin(), sent.end()), wire.end());
      }
      to->PutWire(wire);
      EXPECT_EQ(to->Receive(bytes + 1, &error), sent);
    }
  }
}

TEST_F(SealTest, PiecesBecomeOneStreamAndShareRecords) {
  Shake();
  const Bytes data = Pattern(64 + 40'000 + 64 + 3);
  const size_t sizes[] = {64, 0, 40'000, 64, 3};
  std::vector<iovec> pieces;
  size_t at = 0;
  for (const size_t bytes : sizes) {
    pieces.push_back({const_cast<std::byte*>(data.data()) + at, bytes});
    at += bytes;
  }
  ASSERT_EQ(dialling_.seal->Send(dialling_.fd(), pieces.data(), pieces.size()), static_cast<ssize_t>(at));
  const Bytes wire = dialling_.TakeWire();
  EXPECT_EQ(wire.size(), at + 3 * 22);  // Three records; each adds 22 bytes.
  accepting_.PutWire(wire);
  Bytes received(at);
  std::vector<iovec> room;
  at = 0;
  for (const size_t bytes : {size_t{1}, size_t{30'000}, received.size() - 30'001}) {
    room.push_back({received.data() + at, bytes});
    at += bytes;
  }
  EXPECT_EQ(accepting_.seal->Receive(accepting_.fd(), room.data(), room.size()), static_cast<ssize_t>(at));
  EXPECT_EQ(received, data);
}

TEST_F(SealTest, AFullSocketTakesUpWhereItStopped) {
  Shake();
  const int room = 8 * 1024;
  ASSERT_EQ(::setsockopt(dialling_.fd(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
  const Bytes data = Pattern(1'000'000);
  Bytes received;
  size_t sent = 0;
  int blocked = 0;
  while (received.size() < data.size()) {
    if (sent < data.size()) {
      const ssize_t now = dialling_.Send(Bytes(data.begin() + static_cast<ptrdiff_t>(sent), data.end()));
      if (now < 0) {
        ASSERT_EQ(errno, EAGAIN);
        EXPECT_TRUE(dialling_.seal->holds_output());
        ++blocked;
      }
      sent += now > 0 ? static_cast<size_t>(now) : 0;
    }
    accepting_.PutWire(dialling_.TakeWire());
    int error = 0;
    const Bytes got = accepting_.Receive(data.size(), &error);
    ASSERT_TRUE(error == 0 || error == EAGAIN);
    received.insert(received.end(), got.begin(), got.end());
  }
  EXPECT_EQ(received, data);
  EXPECT_EQ(sent, data.size());
  EXPECT_GT(blocked, 0);
  EXPECT_EQ(dialling_.seal->TakeBegun(), 0u);
}

TEST_F(SealTest, WhatWasBegunIsKnownWhenAConnectionBreaks) {
  Shake();
  const int room = 4 * 1024;
  ASSERT_EQ(::setsockopt(dialling_.fd(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
  const Bytes data = Pattern(50'000);
  ASSERT_EQ(dialling_.Send(data), -1);
  EXPECT_EQ(dialling_.seal->TakeBegun(), data.size());
}

TEST_F(SealTest, KeysChangeAndTheStreamGoesOn) {
  End dialling(HandshakeRole::kInitiator, kKey, 3);
  End accepting(HandshakeRole::kAcceptor, kKey, 5);
  Shake(&dialling, &accepting);
  size_t changes = 0;
  for (int i = 0; i < 200; ++i) {
    for (auto [from, to] : {std::pair(&dialling, &accepting), std::pair(&accepting, &dialling)}) {
      ASSERT_EQ(from->Send(Pattern(100, i)), 100);
      const Bytes wire = from->TakeWire();
      if (wire.size() > 122) ++changes;
      to->PutWire(wire);
      int error = 0;
      ASSERT_EQ(to->Receive(1000, &error), Pattern(100, i)) << i;
    }
  }
  EXPECT_EQ(changes, 199u / 3 + 199 / 5);
}

TEST_F(SealTest, ThePeersEndDuringTheHandshakeIsSaid) {
  ASSERT_EQ(dialling_.Shake().code(), Code::kInProgress);
  dialling_.EndWire();
  EXPECT_EQ(dialling_.Shake().code(), Code::kPeerLost);
}

TEST_F(SealTest, TheProgramsOwnErrorsStay) {
  Shake();
  ERR_raise(ERR_LIB_USER, 77);
  int error = 0;
  Records({10});
  EXPECT_TRUE(Refuses(Pattern(100)));
  accepting_.Receive(10, &error);
  EXPECT_EQ(ERR_GET_REASON(ERR_get_error()), 77);
  EXPECT_EQ(ERR_get_error(), 0u);
}

TEST_F(SealTest, TakesNoMoreMemoryThanItSays) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's malloc does not say what is taken";
#endif
  Shake();  // OpenSSL loads what it keeps for good.
  const size_t before = mallinfo2().uordblks;
  {
    End dialling(HandshakeRole::kInitiator);
    End accepting(HandshakeRole::kAcceptor);
    Shake(&dialling, &accepting);
    for (auto [from, to] : {std::pair(&dialling, &accepting), std::pair(&accepting, &dialling)}) {
      from->Send(Pattern(100'000));
      to->PutWire(from->TakeWire());
      int error = 0;
      EXPECT_EQ(to->Receive(100'000, &error).size(), 100'000u);
    }
    const size_t taken = mallinfo2().uordblks - before;
    EXPECT_LE(taken, 2 * Seal::kMemoryBytes);
    EXPECT_GE(taken, Seal::kMemoryBytes);  // The number is not much too high either.
  }
}

}  // namespace
}  // namespace annulus
