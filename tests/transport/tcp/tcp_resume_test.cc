// Two sessions whose connection is cut after every possible number of bytes. The test is the network between them: it
// passes bytes on, and at the cut everything that it has not passed on is lost. Of sealed connections, every eleventh
// byte is enough: each connection takes some milliseconds to seal.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <asio/io_context.hpp>
#include <memory>
#include <vector>

#include "tests/soak/rounds.h"
#include "tests/transport/tcp/cut_wire.h"
#include "tests/transport/tcp/tcp_peer.h"
#include "transport/tcp/session/tcp_session.h"

namespace annulus {
namespace {

struct Story {
  const char* name;
  bool checksum = false;
  bool is_late = false;     // The receives are posted after the cut.
  bool is_gradual = false;  // The sends get ready bit by bit.
  size_t second_cut = 0;    // Bytes between the first cut and another one; 0: there is none.
  bool seals = false;
  bool asks = false;  // Whether the other end is there, whenever that can be asked.
};

// One side, with what it sends and what it receives.
struct Side {
  Side(const Story& story, SealedSocket socket, const std::vector<uint32_t>& sizes, int seed) : asks(story.asks) {
    TcpSessionConfig config{.slot_bytes = 8192, .slots = 8, .checksum = story.checksum, .retains = true};
    std::vector<SealedSocket> sockets;
    sockets.push_back(std::move(socket));
    session = std::make_unique<TcpSession>(config, std::move(sockets));
    for (const uint32_t bytes : sizes) memory.push_back(Payload(bytes, seed++));
    wanted = memory;
    sends.resize(sizes.size());
  }

  // Posts the next send once the short ones before it have left; every third goes the short path.
  void Post(bool is_gradual) {
    if (posted == sends.size()) return;
    const Bytes& data = memory[posted];
    const uint32_t bytes = static_cast<uint32_t>(data.size());
    if (posted % 3 == 2) {
      if (!session->SendCopy({{posted}}, data.data(), bytes)) return;
      Forget(posted++);
      return;
    }
    sends[posted] = Sending(data, is_gradual ? bytes / 2 : bytes);
    sends[posted].tag = {{posted}};
    session->Post(&sends[posted++]);
  }
  void Work(bool is_gradual, bool receives) {
    Post(is_gradual);
    bool moved = false;
    session->Transmit(&moved);
    if (asks && ++turns % 3 == 0) session->Ask(0);
    for (size_t i = 0; i < posted; ++i) {
      if (sends[i].bytes > 0 && sends[i].code == Code::kInProgress) sends[i].ready = sends[i].bytes;
      if (sends[i].bytes > 0 && sends[i].code == Code::kOk) Forget(i);
    }
    while (receives && received.size() < expected) {
      Recv& recv = *received.emplace_back(std::make_unique<Recv>());
      recv.capacity = 8192;
      if (session->Post(&recv)) continue;
      received.pop_back();
      break;
    }
    const Status status = session->Receive(&moved);
    EXPECT_TRUE(status.ok()) << status.ToString();
    for (; checked < received.size() && received[checked]->code == Code::kOk; ++checked) Check(received[checked].get());
  }
  void Check(Recv* recv) {
    EXPECT_EQ(recv->tag, (Tag{{checked}}));
    EXPECT_EQ(Bytes(recv->data, recv->data + recv->bytes), (*theirs)[checked]) << "slice " << checked;
    session->Release(recv);
  }
  // The memory of a send that is complete belongs to its poster, who may write it.
  void Forget(size_t i) {
    std::fill(memory[i].begin(), memory[i].end(), std::byte{0xdd});
    sends[i].bytes = 0;
  }
  bool done() const {
    return posted == sends.size() && checked == expected &&
           std::all_of(sends.begin(), sends.end(), [](const Send& send) { return send.code == Code::kOk; });
  }

  std::unique_ptr<TcpSession> session;
  std::vector<Bytes> memory, wanted;
  const std::vector<Bytes>* theirs = nullptr;
  std::vector<Send> sends;
  std::vector<std::unique_ptr<Recv>> received;
  size_t posted = 0, checked = 0, expected = 0;
  const bool asks;
  int turns = 0;
};

class TcpResumeTest : public ::testing::TestWithParam<Story> {
 protected:
  // Returns the number of bytes that the network has passed on, and sets *again to those sent again.
  size_t Run(size_t cut_at, uint64_t* again) {
    const Story& story = GetParam();
    auto wire = std::make_unique<CutWire>(&context_, story.seals);
    Side sides[2] = {{story, std::move(wire->sockets[0]), {0, 8, 100, 4097, 300, 17, 1}, 1},
                     {story, std::move(wire->sockets[1]), {4300, 3, 200, 70}, 50}};
    for (int side = 0; side < 2; ++side) {
      sides[side].theirs = &sides[1 - side].wanted;
      sides[side].expected = sides[1 - side].wanted.size();
    }
    size_t passed = 0;
    size_t next_cut = cut_at;
    int quiet = 0;
    for (int turn = 0; turn < 2000 && !(sides[0].done() && sides[1].done()); ++turn) {
      const bool is_cut = passed >= next_cut;
      for (Side& side : sides)
        side.Work(story.is_gradual, !story.is_late || is_cut || next_cut == SIZE_MAX || quiet > 20);
      size_t moved = 0;
      for (int from = 0; from < 2; ++from) moved += wire->Pass(from, next_cut - std::min(next_cut, passed + moved));
      passed += moved;
      quiet = moved > 0 ? 0 : quiet + 1;
      if (passed < next_cut) continue;
      next_cut = story.second_cut > 0 && passed == cut_at ? cut_at + story.second_cut : SIZE_MAX;
      Cut(&wire, sides, again);
      if (HasFailure()) break;
    }
    EXPECT_TRUE(sides[0].done() && sides[1].done());
    return passed;
  }

  // The same, until the second side has all, and the end.
  size_t RunLeaving(size_t cut_at, uint64_t* again) {
    using Debt = TcpSession::Debt;
    const Story& story = GetParam();
    auto wire = std::make_unique<CutWire>(&context_, story.seals);
    Side sides[2] = {{story, std::move(wire->sockets[0]), {0, 8, 100, 4097, 300, 17, 1}, 1},
                     {story, std::move(wire->sockets[1]), {}, 50}};
    sides[1].theirs = &sides[0].wanted;
    sides[1].expected = sides[0].wanted.size();
    TcpSession& leaver = *sides[0].session;
    size_t passed = 0;
    size_t next_cut = cut_at;
    Debt debt = Debt::kData;
    int quiet = 0;
    const auto is_over = [&] { return debt == Debt::kNothing && sides[1].done() && sides[1].session->has_ended(0); };
    for (int turn = 0; turn < 2000 && !is_over(); ++turn) {
      if (sides[0].done()) {
        leaver.FailAll(Code::kAborted);
        leaver.DiscardInput();
        leaver.WriteEnd();
        debt = leaver.FindDebt();
        EXPECT_TRUE(debt == Debt::kData || story.asks || wire->Kept(0) == 0)
            << "what the network has not passed on is owed, but for frames that ask";
      } else {
        sides[0].Work(story.is_gradual, false);
      }
      sides[1].Work(false, !story.is_late || passed >= next_cut || next_cut == SIZE_MAX || quiet > 20);
      size_t moved = 0;
      for (int from = 0; from < 2; ++from) moved += wire->Pass(from, next_cut - std::min(next_cut, passed + moved));
      passed += moved;
      quiet = moved > 0 ? 0 : quiet + 1;
      // By then it has left, if it can.
      if (passed < next_cut || (!sides[0].done() && quiet < 20)) continue;
      next_cut = story.second_cut > 0 && passed == cut_at ? cut_at + story.second_cut : SIZE_MAX;
      Cut(&wire, sides, again);
      if (HasFailure()) break;
    }
    EXPECT_TRUE(is_over()) << "a hang";
    return passed;
  }

  void Cut(std::unique_ptr<CutWire>* wire, Side (&sides)[2], uint64_t* again) {
    const uint64_t received[2] = {sides[0].session->Freeze(0), sides[1].session->Freeze(0)};
    const uint64_t lost[2] = {(*wire)->Kept(0), (*wire)->Kept(1)};
    *wire = std::make_unique<CutWire>(&context_, GetParam().seals);
    for (int side = 0; side < 2; ++side) {
      bool moved = false;
      uint64_t bytes = 0;
      const Status status = sides[side].session->Resume(0, std::move((*wire)->sockets[static_cast<size_t>(side)]),
                                                        received[1 - side], &bytes, &moved);
      ASSERT_TRUE(status.ok()) << status.ToString();
      // With the last byte of a sealed record, all of it is lost.
      if (GetParam().seals) {
        EXPECT_LE(bytes, lost[side] + Seal::kMostInRecord);
      } else {
        EXPECT_EQ(bytes, lost[side]) << "exactly what was lost is sent again";
      }
      *again += bytes;
    }
  }

  asio::io_context context_;
};

TEST_P(TcpResumeTest, CutAfterEveryByte) {
  uint64_t none = 0;
  const size_t total = Run(SIZE_MAX, &none);
  ASSERT_GT(total, 9'000u);
  EXPECT_EQ(none, 0u);
  uint64_t again = 0;
  const bool seals = GetParam().seals;
  // Primes, so they meet each place of a frame. All bytes under soak.
  const size_t usual = kSanitized ? 97 : seals ? 31 : 3;
  const size_t step = Rounds(1, 2) == 1 ? usual : seals ? 11 : 1;
  for (size_t cut_at = 0; cut_at < total; cut_at += step) {
    const size_t passed = Run(cut_at, &again);
    // How often it is asked depends on how long it takes.
    EXPECT_TRUE(seals || GetParam().asks || passed == total) << passed << " bytes: nothing is lost or comes twice";
    ASSERT_FALSE(HasFailure()) << "cut after " << cut_at << " of " << total << " bytes";
  }
  EXPECT_GT(again, 0u);
}

// The first side has only to send, and leaves as soon as its sends are complete.
TEST_P(TcpResumeTest, WhatALeavingSideSentLastIsSentAgain) {
  uint64_t none = 0;
  const size_t total = RunLeaving(SIZE_MAX, &none);
  ASSERT_GT(total, 4'000u);
  EXPECT_EQ(none, 0u);
  uint64_t again = 0;
  const bool seals = GetParam().seals;
  const size_t cases = Rounds(seals ? 60 : 600, seals ? total / 11 : total);
  for (size_t i = 0; i <= cases; ++i) {
    const size_t cut_at = i * total / cases;
    const size_t passed = RunLeaving(cut_at, &again);
    // How often it is asked depends on how long it takes.
    EXPECT_TRUE(seals || GetParam().asks || passed == total) << passed << " bytes: nothing is lost or comes twice";
    ASSERT_FALSE(HasFailure()) << "cut after " << cut_at << " of " << total << " bytes";
  }
  EXPECT_GT(again, 0u);
}

TEST_P(TcpResumeTest, WhatCannotBeIsRefused) {
  auto wire = std::make_unique<CutWire>(&context_, GetParam().seals);
  Side side(GetParam(), std::move(wire->sockets[0]), {100}, 1);
  side.Work(false, false);
  side.session->Freeze(0);
  CutWire next(&context_, GetParam().seals);
  uint64_t again = 0;
  bool moved = false;
  const uint64_t sent = kFrameHeaderBytes + 100;
  const Status status = side.session->Resume(0, std::move(next.sockets[0]), sent + 1, &again, &moved);
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(status, "has 165 bytes of lane 0, expected 0 to 164")) << status.ToString();
  ASSERT_TRUE(side.session->Resume(0, std::move(next.sockets[0]), sent, &again, &moved).ok());
  side.session->Freeze(0);
  EXPECT_EQ(side.session->Resume(0, std::move(next.sockets[1]), sent - 1, &again, &moved).code(), Code::kProtocol)
      << "what was confirmed once is not kept";
}

// The kernel has acknowledged it, so the peer will never send it again.
TEST_P(TcpResumeTest, WhatHasArrivedIsReadThoughNoConnectionFollows) {
  CutWire wire(&context_, GetParam().seals);
  Side from(GetParam(), std::move(wire.sockets[0]), {300, 4300, 70}, 1);
  Side to(GetParam(), std::move(wire.sockets[1]), {}, 1);
  to.theirs = &from.wanted;
  to.expected = from.wanted.size();
  for (int turn = 0; turn < 20; ++turn) {
    from.Work(GetParam().is_gradual, false);
    while (wire.Pass(0, SIZE_MAX) > 0) {
    }
  }
  ASSERT_GT(to.session->Freeze(0), 4600u);
  to.session->GiveUpResuming();
  EXPECT_TRUE(to.session->AnyEnded(false)) << "nothing can be sent";
  for (int turn = 0; turn < 20; ++turn) to.Work(false, true);
  EXPECT_EQ(to.checked, from.wanted.size());
  EXPECT_TRUE(to.session->IsStuck()) << "nothing more can come";
}

// A path that delivers nothing yet: what is lent would wait for it.
TEST(TcpLongPath, AsMuchAsTheSlotsIsUnderWayBeyondWhatIsLent) {
  asio::io_context context;
  CutWire wire(&context, false);
  constexpr size_t kSlot = 32 * 1024;
  constexpr size_t kSlots = 4;
  TcpSessionConfig config{.slot_bytes = kSlot, .slots = kSlots, .retains = true, .long_path = true};
  std::vector<SealedSocket> sockets;
  sockets.push_back(std::move(wire.sockets[0]));
  TcpSession session(config, std::move(sockets));
  std::vector<Bytes> memory;
  std::vector<Send> sends(kSlots + 1);
  for (size_t i = 0; i < sends.size(); ++i) memory.push_back(Payload(kSlot, static_cast<int>(i)));
  for (size_t i = 0; i < sends.size(); ++i) session.Post(&(sends[i] = Sending(memory[i], kSlot)));
  bool moved = false;
  for (int poll = 0; poll < 20; ++poll) session.Transmit(&moved);
  EXPECT_EQ(wire.Kept(0), sends.size() * (kFrameHeaderBytes + kSlot)) << "all is on its way";
  for (size_t i = 0; i < sends.size(); ++i) {
    EXPECT_EQ(sends[i].code, i < kSlots ? Code::kOk : Code::kInProgress) << "send " << i;
  }
  // What is written again is what was sent, whatever its poster does with the memory of sends that are complete.
  const std::vector<Bytes> wanted = memory;
  for (size_t i = 0; i < kSlots; ++i) std::fill(memory[i].begin(), memory[i].end(), std::byte{0xdd});
  session.Freeze(0);
  CutWire next(&context, false);
  uint64_t again = 0;
  ASSERT_TRUE(session.Resume(0, std::move(next.sockets[0]), 0, &again, &moved).ok());
  for (int poll = 0; poll < 20; ++poll) session.Transmit(&moved);
  EXPECT_EQ(again, sends.size() * (kFrameHeaderBytes + kSlot));
  for (const Bytes& slice : wanted) {
    Bytes came;
    for (std::byte piece[4096]; came.size() < kFrameHeaderBytes + kSlot;) {
      const size_t wants = std::min(sizeof piece, kFrameHeaderBytes + kSlot - came.size());
      const ssize_t got = recv(next.network(0), piece, wants, 0);
      ASSERT_GT(got, 0);
      came.insert(came.end(), piece, piece + got);
    }
    EXPECT_EQ(Bytes(came.begin() + kFrameHeaderBytes, came.end()), slice);
  }
}

// Copies are contiguous, so a long frame may not fit though little is kept.
TEST(TcpShortRoom, IsFoundOnceAllIsAcknowledged) {
  asio::io_context context;
  for (const uint32_t bytes : {1000u, 2000u, 3000u, 5000u}) {
    CutWire wire(&context, false);
    std::vector<SealedSocket> sockets;
    sockets.push_back(std::move(wire.sockets[0]));
    TcpSession session({.slot_bytes = 16 * 1024, .slots = 4, .retains = true}, std::move(sockets));
    const Bytes payload = Payload(TcpSession::kMostShortBytes, 1);
    const size_t frame = kFrameHeaderBytes + bytes;
    for (size_t sent = 0; sent <= TcpSession::kMostShortBytes; sent += frame) {
      ASSERT_TRUE(session.SendCopy(Tag(), payload.data(), bytes));
      while (wire.Kept(0) > frame) wire.Pass(0, wire.Kept(0) - frame);  // The latest is not acknowledged yet.
    }
    while (wire.Pass(0, SIZE_MAX) > 0) {
    }
    EXPECT_TRUE(session.SendCopy(Tag(), payload.data(), TcpSession::kMostShortBytes)) << bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(Stories, TcpResumeTest,
                         ::testing::Values(Story{"Plain"}, Story{.name = "Checksummed", .checksum = true},
                                           Story{.name = "Late", .is_late = true},
                                           Story{.name = "Gradual", .is_gradual = true},
                                           Story{.name = "Twice", .is_late = true, .second_cut = 700},
                                           Story{.name = "Sealed", .seals = true},
                                           Story{.name = "SealedChecksummed", .checksum = true, .seals = true},
                                           Story{.name = "SealedLate", .is_late = true, .seals = true},
                                           Story{.name = "SealedGradual", .is_gradual = true, .seals = true},
                                           Story{.name = "SealedTwice", .second_cut = 700, .seals = true},
                                           Story{.name = "Asks", .is_gradual = true, .asks = true},
                                           Story{.name = "SealedAsks", .seals = true, .asks = true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace annulus
