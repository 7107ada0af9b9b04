// Tests of Handshake: who gets in, who does not, and what each side is told.
#include "transport/security/auth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace annulus {
namespace {

using Bytes = std::vector<std::byte>;

constexpr char kKey[] = "a key of a test job";

Hello InitiatorHello() {
  return {.purpose = {2, "link"},
          .identity = {.job = 77},
          .nranks = 4,
          .rank = 3,
          .target_rank = 1,
          .channel = 2,
          .lane = 5};
}
Hello AcceptorHello() { return {.purpose = {2, "link"}, .identity = {.job = 77}, .nranks = 4, .rank = 1}; }

Bytes TakeOutput(Handshake* from) {
  const std::span<const std::byte> output = from->Output();
  Bytes bytes(output.begin(), output.end());
  from->Sent(bytes.size());
  return bytes;
}

// Feeds as much as is wanted of `bytes`, `piece` at a time.
Status FeedAll(Handshake* to, const Bytes& bytes, size_t piece = 1000) {
  size_t done = 0;
  while (done < bytes.size() && to->Wants() > 0) {
    const size_t now = std::min({piece, bytes.size() - done, to->Wants()});
    Status status = to->Feed(std::span(bytes).subspan(done, now));
    if (!status.ok()) return status;
    done += now;
  }
  return Status();
}

struct Result {
  Status initiator;
  Status acceptor;
};

// Carries bytes between both until neither has more to say.
Result Exchange(Handshake* initiator, Handshake* acceptor, size_t piece = 1000) {
  Result result;
  for (int turn = 0; turn < 8; ++turn) {
    if (result.acceptor.ok()) result.acceptor = FeedAll(acceptor, TakeOutput(initiator), piece);
    if (result.initiator.ok()) result.initiator = FeedAll(initiator, TakeOutput(acceptor), piece);
  }
  return result;
}

Result RunHellos(const Hello& initiator_hello, const Hello& acceptor_hello) {
  Handshake initiator(Handshake::Role::kInitiator, kKey, initiator_hello);
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, acceptor_hello);
  return Exchange(&initiator, &acceptor);
}

bool Mentions(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

TEST(HandshakeTest, BothSidesWithOneKeyFinishAndKnowEachOther) {
  for (const size_t piece : {1000u, 7u, 1u}) {
    Handshake initiator(Handshake::Role::kInitiator, kKey, InitiatorHello());
    Handshake acceptor(Handshake::Role::kAcceptor, kKey, AcceptorHello());
    const Result result = Exchange(&initiator, &acceptor, piece);
    ASSERT_TRUE(result.initiator.ok() && result.acceptor.ok()) << result.initiator.ToString();
    EXPECT_EQ(initiator.state(), Handshake::State::kDone);
    EXPECT_EQ(acceptor.state(), Handshake::State::kDone);
    EXPECT_EQ(acceptor.peer().rank, 3u);
    EXPECT_EQ(acceptor.peer().channel, 2u);
    EXPECT_EQ(acceptor.peer().lane, 5u);
    EXPECT_EQ(initiator.peer().rank, 1u);
    EXPECT_EQ(initiator.Wants(), 0u);
    EXPECT_EQ(acceptor.Wants(), 0u);
  }
}

TEST(HandshakeTest, NeitherSideIsDoneBeforeItsProofIsSent) {
  Handshake initiator(Handshake::Role::kInitiator, kKey, InitiatorHello());
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, AcceptorHello());
  ASSERT_TRUE(FeedAll(&acceptor, TakeOutput(&initiator)).ok());
  ASSERT_TRUE(FeedAll(&initiator, TakeOutput(&acceptor)).ok());
  EXPECT_EQ(acceptor.state(), Handshake::State::kRunning);
  EXPECT_EQ(initiator.state(), Handshake::State::kRunning);
  TakeOutput(&initiator);
  EXPECT_EQ(initiator.state(), Handshake::State::kDone);
}

TEST(HandshakeTest, EmptyKeysOnBothSidesAgree) {
  Handshake initiator(Handshake::Role::kInitiator, "", InitiatorHello());
  Handshake acceptor(Handshake::Role::kAcceptor, "", AcceptorHello());
  const Result result = Exchange(&initiator, &acceptor);
  EXPECT_TRUE(result.initiator.ok() && result.acceptor.ok());
  EXPECT_EQ(acceptor.state(), Handshake::State::kDone);
}

TEST(HandshakeTest, AnInitiatorRefusesAnAcceptorWithAnotherKey) {
  Handshake initiator(Handshake::Role::kInitiator, kKey, InitiatorHello());
  Handshake acceptor(Handshake::Role::kAcceptor, "another key altogether", AcceptorHello());
  const Result result = Exchange(&initiator, &acceptor);
  EXPECT_EQ(result.initiator.code(), Code::kAuth);
  EXPECT_EQ(result.initiator.peer(), 1);
  EXPECT_NE(acceptor.state(), Handshake::State::kDone);
  EXPECT_TRUE(initiator.Output().empty()) << "no proof for one who has not proven himself";
}

TEST(HandshakeTest, AnAcceptorRefusesAWrongProof) {
  Handshake initiator(Handshake::Role::kInitiator, kKey, InitiatorHello());
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, AcceptorHello());
  ASSERT_TRUE(FeedAll(&acceptor, TakeOutput(&initiator)).ok());
  ASSERT_TRUE(FeedAll(&initiator, TakeOutput(&acceptor)).ok());
  Bytes proof = TakeOutput(&initiator);
  proof.back() ^= std::byte{1};
  EXPECT_EQ(FeedAll(&acceptor, proof).code(), Code::kAuth);
  EXPECT_EQ(acceptor.state(), Handshake::State::kFailed);
}

TEST(HandshakeTest, AForgottenKeyIsCalledByItsName) {
  Handshake initiator(Handshake::Role::kInitiator, "", InitiatorHello());
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, AcceptorHello());
  const Result result = Exchange(&initiator, &acceptor);
  EXPECT_EQ(result.initiator.code(), Code::kAuth);
  EXPECT_TRUE(Mentions(result.initiator, "has a job key, this rank runs without one")) << result.initiator.ToString();
}

TEST(HandshakeTest, AReplayedInitiatorDoesNotGetIn) {
  Handshake initiator(Handshake::Role::kInitiator, kKey, InitiatorHello());
  Handshake first(Handshake::Role::kAcceptor, kKey, AcceptorHello());
  const Bytes hello = TakeOutput(&initiator);
  ASSERT_TRUE(FeedAll(&first, hello).ok());
  ASSERT_TRUE(FeedAll(&initiator, TakeOutput(&first)).ok());
  const Bytes proof = TakeOutput(&initiator);
  ASSERT_TRUE(FeedAll(&first, proof).ok());
  ASSERT_EQ(first.state(), Handshake::State::kDone);

  Handshake second(Handshake::Role::kAcceptor, kKey, AcceptorHello());
  ASSERT_TRUE(FeedAll(&second, hello).ok());
  TakeOutput(&second);
  EXPECT_EQ(FeedAll(&second, proof).code(), Code::kAuth);
}

TEST(HandshakeTest, AReplayedAcceptorIsNotBelieved) {
  Handshake first(Handshake::Role::kInitiator, kKey, InitiatorHello());
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, AcceptorHello());
  ASSERT_TRUE(FeedAll(&acceptor, TakeOutput(&first)).ok());
  const Bytes answer = TakeOutput(&acceptor);
  Handshake second(Handshake::Role::kInitiator, kKey, InitiatorHello());
  EXPECT_EQ(FeedAll(&second, answer).code(), Code::kAuth);
}

TEST(HandshakeTest, AHelloSentBackToItsSpeakerIsRefused) {
  Hello hello = InitiatorHello();
  Handshake initiator(Handshake::Role::kInitiator, kKey, hello);
  const Bytes own = TakeOutput(&initiator);
  const Status status = FeedAll(&initiator, own);
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(status, "wrong role")) << status.ToString();
}

TEST(HandshakeTest, AnAcceptorsProofSentBackToItIsRefused) {
  Handshake initiator(Handshake::Role::kInitiator, "not the key", InitiatorHello());
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, AcceptorHello());
  ASSERT_TRUE(FeedAll(&acceptor, TakeOutput(&initiator)).ok());
  const Bytes answer = TakeOutput(&acceptor);
  const Bytes proof(answer.begin() + Handshake::kHelloBytes, answer.end());
  EXPECT_EQ(FeedAll(&acceptor, proof).code(), Code::kAuth);
}

TEST(HandshakeTest, AnotherJobIsRefusedAndBothSidesSayWhy) {
  Hello other = AcceptorHello();
  other.identity.job = 78;
  const Result result = RunHellos(InitiatorHello(), other);
  EXPECT_EQ(result.acceptor.code(), Code::kProtocol);
  EXPECT_EQ(result.initiator.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(result.acceptor, "job id: 77, here it is 78")) << result.acceptor.ToString();
  EXPECT_TRUE(Mentions(result.initiator, "job id: 78, here it is 77")) << result.initiator.ToString();
}

TEST(HandshakeTest, AnotherRunIsRefusedAndBothSidesNameBoth) {
  Hello stale = InitiatorHello();
  stale.identity.run = {"A", 0};
  Hello host = AcceptorHello();
  host.identity.run = {"B", 1};
  Handshake initiator(Handshake::Role::kInitiator, kKey, stale);
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, host);
  const Result result = Exchange(&initiator, &acceptor);
  EXPECT_EQ(result.initiator.code(), Code::kMismatch);
  EXPECT_EQ(result.acceptor.code(), Code::kMismatch);
  EXPECT_EQ(result.initiator.message(), "this rank belongs to run A restart 0, rank 1 (unproven) to run B restart 1");
  EXPECT_EQ(result.acceptor.message(), "this rank belongs to run B restart 1, rank 3 (unproven) to run A restart 0");
  EXPECT_EQ(initiator.refused(), Handshake::Refused::kOtherRun);
  EXPECT_EQ(acceptor.refused(), Handshake::Refused::kOtherRun);
}

TEST(HandshakeTest, WhoIsFromBeforeARestartIsToldApart) {
  Hello later = InitiatorHello();
  later.identity.run = {"A", 1};
  Hello earlier = AcceptorHello();
  earlier.identity.run = {"A", 0};
  Handshake initiator(Handshake::Role::kInitiator, kKey, later);
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, earlier);
  const Result result = Exchange(&initiator, &acceptor);
  EXPECT_EQ(result.initiator.code(), Code::kMismatch);
  EXPECT_EQ(initiator.refused(), Handshake::Refused::kEarlierRun);
  EXPECT_EQ(acceptor.refused(), Handshake::Refused::kOtherRun);
}

TEST(HandshakeTest, AnotherEpochIsRefused) {
  Hello other = AcceptorHello();
  other.identity.epoch = 2;
  const Result result = RunHellos(InitiatorHello(), other);
  EXPECT_TRUE(Mentions(result.acceptor, "epoch: 0, here it is 2")) << result.acceptor.ToString();
}

TEST(HandshakeTest, WhatCannotBePrintedOfARunIsNotLogged) {
  Hello stale = InitiatorHello();
  stale.identity.run.id = "A\nannulus[0] error: ";
  EXPECT_TRUE(Mentions(RunHellos(stale, AcceptorHello()).acceptor, "to run A?annulus[0] error: "));
}

TEST(HandshakeTest, TheHelloTellsTheLibrary) {
  Hello own = InitiatorHello();
  own.library_version = {7, 8, 9};
  own.library_build.fill(std::byte{0x5a});
  Handshake initiator(Handshake::Role::kInitiator, kKey, own);
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, AcceptorHello());
  ASSERT_TRUE(Exchange(&initiator, &acceptor).acceptor.ok());
  EXPECT_EQ(acceptor.peer().library_version, own.library_version);
  EXPECT_EQ(acceptor.peer().library_build, own.library_build);
  EXPECT_EQ(initiator.peer().library_version, kLibraryVersion);
}

TEST(HandshakeTest, AnotherNumberOfRanksIsRefusedAndBothSidesSayWhy) {
  Hello other = AcceptorHello();
  other.nranks = 5;
  const Result result = RunHellos(InitiatorHello(), other);
  EXPECT_TRUE(Mentions(result.acceptor, "number of ranks: 4, here it is 5")) << result.acceptor.ToString();
  EXPECT_TRUE(Mentions(result.initiator, "number of ranks: 5, here it is 4")) << result.initiator.ToString();
}

TEST(HandshakeTest, AnotherPurposeIsRefused) {
  Hello other = AcceptorHello();
  other.purpose = kRendezvousPurpose;
  const Result result = RunHellos(InitiatorHello(), other);
  EXPECT_TRUE(Mentions(result.acceptor, "purpose: number 2, here it is number 1, rendezvous"))
      << result.acceptor.ToString();
}

TEST(HandshakeTest, WrongPartiesAreRefused) {
  Hello acceptor = AcceptorHello();
  acceptor.rank = 2;
  EXPECT_TRUE(Mentions(RunHellos(InitiatorHello(), acceptor).acceptor, "wants rank 1, this is rank 2"));
  Hello initiator = InitiatorHello();
  initiator.rank = 4;
  EXPECT_EQ(RunHellos(initiator, AcceptorHello()).acceptor.code(), Code::kProtocol);
  initiator.rank = 1;
  EXPECT_EQ(RunHellos(initiator, AcceptorHello()).acceptor.code(), Code::kProtocol);
}

TEST(HandshakeTest, BothSidesKnowWhetherToSealAndWithWhichKey) {
  Hello dials = InitiatorHello();
  Hello accepts = AcceptorHello();
  dials.encrypts = accepts.encrypts = true;
  Handshake initiator(Handshake::Role::kInitiator, kKey, dials);
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, accepts);
  const Result result = Exchange(&initiator, &acceptor);
  ASSERT_TRUE(result.initiator.ok() && result.acceptor.ok());
  EXPECT_TRUE(initiator.encrypts() && acceptor.encrypts());
  EXPECT_EQ(initiator.SealKey(), acceptor.SealKey());
  Handshake again(Handshake::Role::kInitiator, kKey, dials);
  Handshake anew(Handshake::Role::kAcceptor, kKey, accepts);
  Exchange(&again, &anew);
  EXPECT_NE(again.SealKey(), initiator.SealKey()) << "each connection has its own";
}

// Both sides hear it, and only from a peer that has proven itself.
TEST(HandshakeTest, WhoEncryptsAloneIsRefusedByName) {
  for (const bool dialling : {true, false}) {
    Hello dials = InitiatorHello();
    Hello accepts = AcceptorHello();
    (dialling ? dials : accepts).encrypts = true;
    Handshake initiator(Handshake::Role::kInitiator, kKey, dials);
    Handshake acceptor(Handshake::Role::kAcceptor, kKey, accepts);
    const Result result = Exchange(&initiator, &acceptor);
    const std::string of_initiator = std::string("ANNULUS_ENCRYPT=") + (dialling ? "required" : "off");
    const std::string of_acceptor = std::string("ANNULUS_ENCRYPT=") + (dialling ? "off" : "required");
    EXPECT_EQ(result.initiator.code(), Code::kMismatch);
    EXPECT_EQ(result.acceptor.code(), Code::kMismatch);
    EXPECT_EQ(initiator.refused(), Handshake::Refused::kUnlike);
    EXPECT_EQ(acceptor.refused(), Handshake::Refused::kUnlike);
    EXPECT_TRUE(Mentions(result.initiator, "rank 1 has " + of_acceptor + ", this rank (3) has " + of_initiator));
    EXPECT_TRUE(Mentions(result.acceptor, "rank 3 has " + of_initiator + ", this rank (1) has " + of_acceptor));
    Handshake stranger(Handshake::Role::kInitiator, "another key, of a stranger", dials);
    Handshake other(Handshake::Role::kAcceptor, kKey, accepts);
    Exchange(&stranger, &other);
    EXPECT_NE(other.refused(), Handshake::Refused::kUnlike);
  }
}

TEST(HandshakeTest, NeighbouringMinorVersionsMeetAtTheLower) {
  Hello newer = InitiatorHello();
  newer.version_minor = 3;
  Hello older = AcceptorHello();
  older.version_minor = 2;
  Handshake initiator(Handshake::Role::kInitiator, kKey, newer);
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, older);
  const Result result = Exchange(&initiator, &acceptor);
  ASSERT_TRUE(result.initiator.ok() && result.acceptor.ok());
  EXPECT_EQ(initiator.session_minor(), 2);
  EXPECT_EQ(acceptor.session_minor(), 2);
}

// Whose hello may be of another length: nobody waits for the rest of it.
TEST(HandshakeTest, AnotherMajorVersionIsRefusedByItsFirstBytes) {
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, AcceptorHello());
  const std::string text("ANNULUS\n\1\0\0\0", Handshake::kPrefixBytes);
  const Status status = acceptor.Feed(std::as_bytes(std::span(text)));
  EXPECT_TRUE(Mentions(status, "wire version 1.0")) << status.ToString();
  EXPECT_EQ(acceptor.Output().size(), Handshake::kHelloBytes);
}

TEST(HandshakeTest, AnotherMajorVersionIsRefusedNamingBoth) {
  Hello newer = InitiatorHello();
  newer.version_major = 3;
  const Result result = RunHellos(newer, AcceptorHello());
  for (const Status& status : {result.initiator, result.acceptor}) {
    EXPECT_EQ(status.code(), Code::kProtocol);
    EXPECT_TRUE(Mentions(status, "2.1") && Mentions(status, "3.1")) << status.ToString();
  }
}

TEST(HandshakeTest, GarbageIsRefusedWithoutAnAnswer) {
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, AcceptorHello());
  const std::string text = "GET / HTTP/1.1\r\nHost: example\r\n" + std::string(80, ' ');
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  const Status status = FeedAll(&acceptor, bytes);
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(status, "not an Annulus hello"));
  EXPECT_TRUE(acceptor.Output().empty());
  EXPECT_EQ(acceptor.Wants(), 0u);
  EXPECT_FALSE(acceptor.Feed({}).ok());
}

TEST(HandshakeTest, ATruncatedHelloLeavesItRunning) {
  Handshake initiator(Handshake::Role::kInitiator, kKey, InitiatorHello());
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, AcceptorHello());
  Bytes hello = TakeOutput(&initiator);
  hello.pop_back();
  EXPECT_TRUE(FeedAll(&acceptor, hello).ok());
  EXPECT_EQ(acceptor.Wants(), 1u);
  EXPECT_EQ(acceptor.state(), Handshake::State::kRunning);
  EXPECT_TRUE(acceptor.Output().empty());
}

// Whichever bit of the exchange is changed under way, nobody ends up connected on both sides.
TEST(HandshakeTest, NoFlippedBitGetsThrough) {
  constexpr size_t kTotal = 2 * (Handshake::kHelloBytes + Handshake::kMacBytes);
  for (size_t flip = 0; flip < kTotal; ++flip) {
    Handshake initiator(Handshake::Role::kInitiator, kKey, InitiatorHello());
    Handshake acceptor(Handshake::Role::kAcceptor, kKey, AcceptorHello());
    size_t carried = 0;
    auto carry = [&](Handshake* from, Handshake* to) {
      Bytes bytes = TakeOutput(from);
      if (flip >= carried && flip < carried + bytes.size()) bytes[flip - carried] ^= std::byte{0x10};
      carried += bytes.size();
      return FeedAll(to, bytes).ok();
    };
    const bool through = carry(&initiator, &acceptor) && carry(&acceptor, &initiator) && carry(&initiator, &acceptor);
    EXPECT_FALSE(through) << "byte " << flip;
    EXPECT_FALSE(acceptor.state() == Handshake::State::kDone && initiator.state() == Handshake::State::kDone);
  }
}

}  // namespace
}  // namespace annulus
