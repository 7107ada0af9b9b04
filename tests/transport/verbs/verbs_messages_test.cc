// What a peer may send over a verbs link, and what breaks the link: each wrong field is found before it is used.
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>

#include "tests/transport/verbs/loose_receiver.h"
#include "transport/verbs/rail/verbs_format.h"

namespace annulus {
namespace {

VerbsHeader Header(uint32_t bytes, uint32_t ready, uint32_t sequence) {
  VerbsHeader header;
  header.tag = {{1, 2, 3, 4}};
  header.bytes = bytes;
  header.ready = ready;
  header.sequence = sequence;
  return header;
}

void ExpectFault(const LooseReceiver& loose, const std::string& what) {
  EXPECT_STREQ(loose.fault().what, what.c_str());
}

TEST(VerbsMessagesTest, SlicesPartsAndShortOnesArriveInOrder) {
  LooseReceiver loose;
  Recv recvs[3];
  for (Recv& recv : recvs) {
    recv.capacity = 1024;
    ASSERT_TRUE(loose.receiver().Post(&recv));
  }
  loose.Slice(2, Header(1000, 300, 0));
  EXPECT_TRUE(loose.receiver().Advance());
  EXPECT_EQ(recvs[0].arrived, 300u);
  loose.Complete(VerbsKind::kPart, 700, 400, 1);
  loose.Complete(VerbsKind::kPart, 1000, 300, 2);
  loose.Short(5, Header(100, 100, 1));
  loose.Short(6, Header(0, 0, 2));
  EXPECT_TRUE(loose.receiver().Advance());
  EXPECT_FALSE(loose.fault().any()) << loose.fault().what;
  for (const Recv& recv : recvs) EXPECT_EQ(recv.code, Code::kOk);
  EXPECT_EQ(recvs[0].data, loose.slot(2) + kVerbsHeaderBytes);
  EXPECT_EQ(recvs[1].data, loose.cell(5) + kVerbsHeaderBytes);
  EXPECT_EQ(loose.outbox().taken(), 3u) << "cells are taken when they are released";
  for (Recv& recv : recvs) loose.receiver().Release(&recv);
  EXPECT_EQ(loose.outbox().taken(), 5u);
  EXPECT_EQ(loose.returns().released, uint64_t{1} << 2);
  EXPECT_EQ(loose.inbox().received(), 5u);
}

struct Wrong {
  const char* what;
  void (*send)(LooseReceiver* loose);
};

void ExpectFaults(std::span<const Wrong> all) {
  for (const Wrong& wrong : all) {
    LooseReceiver loose;
    wrong.send(&loose);
    ExpectFault(loose, wrong.what);
  }
}

TEST(VerbsMessagesTest, AWrongFieldBreaksTheLink) {
  const Wrong all[] = {
      {"a slot's number", [](LooseReceiver* loose) { loose->Complete(VerbsKind::kSlice, 4, 64, 0); }},
      {"a message's size", [](LooseReceiver* loose) { loose->Complete(VerbsKind::kShort, 0, 63, 0); }},
      {"a message's size",
       [](LooseReceiver* loose) {
         WriteVerbsHeader(Header(10, 10, 0), loose->cell(0));
         loose->Complete(VerbsKind::kShort, 0, 64 + 11, 0);
       }},
      {"a message's size", [](LooseReceiver* loose) { loose->Slice(0, Header(10, 11, 0)); }},
      {"a header's content",
       [](LooseReceiver* loose) {
         WriteVerbsHeader(Header(10, 10, 0), loose->slot(0));
         loose->slot(0)[kVerbsHeaderBytes - 1] = std::byte{1};
         loose->Complete(VerbsKind::kSlice, 0, kVerbsHeaderBytes + 10, 0);
       }},
      {"a slice's size", [](LooseReceiver* loose) { loose->Slice(0, Header(1025, 1025, 0)); }},
      {"a short slice's size", [](LooseReceiver* loose) { loose->Short(0, Header(20, 10, 0)); }},
      {"a short slice's size", [](LooseReceiver* loose) { loose->Short(0, Header(193, 193, 0)); }},
      {"a part's end", [](LooseReceiver* loose) { loose->Complete(VerbsKind::kPart, 10, 10, 0); }},
      {"a part's size",
       [](LooseReceiver* loose) {
         loose->Slice(0, Header(1000, 300, 0));
         loose->Complete(VerbsKind::kPart, 700, 401, 0);
       }},
      {"a slice within a slice, number",
       [](LooseReceiver* loose) {
         loose->Slice(0, Header(1000, 300, 0));
         loose->Slice(1, Header(1000, 1000, 1));
       }},
      {"a slot that is in use",
       [](LooseReceiver* loose) {
         loose->Slice(0, Header(1000, 1000, 0));
         loose->Slice(0, Header(1000, 1000, 1));
       }},
      {"messages without credit",
       [](LooseReceiver* loose) {
         for (uint32_t i = 0; i < VerbsQueueDepth(LooseReceiver::kSlots) + 1; ++i) {
           loose->Short(i % VerbsQueueDepth(LooseReceiver::kSlots), Header(8, 8, i));
         }
       }},
      {"a message of the wrong kind",
       [](LooseReceiver* loose) {
         ibv_wc completion{};
         completion.opcode = IBV_WC_RECV;
         completion.wc_flags = IBV_WC_WITH_IMM;
         const VerbsImmediate immediate{VerbsKind::kSlice, 0};
         completion.imm_data = htonl(immediate.Pack());
         loose->Complete(completion, 0);
       }},
  };
  ExpectFaults(all);
}

TEST(VerbsMessagesTest, AWrongNumberOrCountBreaksTheLink) {
  const Wrong all[] = {
      {"a slice's number",
       [](LooseReceiver* loose) {
         static Recv recv;  // Lent until the receiver ends.
         recv = Recv();
         recv.capacity = 1024;
         ASSERT_TRUE(loose->receiver().Post(&recv));
         loose->Slice(0, Header(1000, 1000, 1));
         EXPECT_FALSE(loose->receiver().Advance());
       }},
      {"a released slot that it does not have",
       [](LooseReceiver* loose) {
         VerbsHeader header = Header(1000, 1000, 0);
         header.released = header.releases = 1;
         loose->Slice(0, header);
       }},
      {"a count of taken messages",
       [](LooseReceiver* loose) {
         VerbsHeader header = Header(1000, 1000, 0);
         header.taken = 1;
         loose->Slice(0, header);
       }},
      {"a count of taken slices",
       [](LooseReceiver* loose) {
         VerbsHeader header = Header(1000, 1000, 0);
         header.taken_slices = 1;
         loose->Slice(0, header);
       }},
      {"a slice's number", [](LooseReceiver* loose) { loose->Slice(0, Header(1000, 1000, 1000)); }},
      {"a slice's number",
       [](LooseReceiver* loose) {
         loose->Slice(0, Header(1000, 1000, 0));
         loose->Slice(1, Header(1000, 1000, 0));
       }},
  };
  ExpectFaults(all);
}

TEST(VerbsMessagesTest, ASliceAboveTheCapacityIsRefusedWithItsSize) {
  LooseReceiver loose;
  Recv recv;
  recv.capacity = 99;
  ASSERT_TRUE(loose.receiver().Post(&recv));
  loose.Slice(0, Header(1000, 1000, 0));
  loose.receiver().Advance();
  EXPECT_EQ(recv.bytes, 1000u);
  EXPECT_TRUE(loose.fault().any());
}

// The second rail's slice comes first, the first one's in two parts. Nothing is taken before its turn.
TEST(VerbsMessagesTest, SlicesOfSeveralRailsAreTakenInTheirOrder) {
  LooseReceiver loose(2);
  Recv recvs[4];
  for (Recv& recv : recvs) {
    recv.capacity = 1024;
    ASSERT_TRUE(loose.receiver().Post(&recv));
  }
  loose.Slice(1, Header(500, 500, 1), 1);
  loose.Short(3, Header(10, 10, 2), 1);
  EXPECT_FALSE(loose.receiver().Advance());
  EXPECT_FALSE(loose.receiver().HasWork());
  EXPECT_FALSE(recvs[0].started);
  loose.Slice(0, Header(1000, 300, 0), 0);
  EXPECT_TRUE(loose.receiver().Advance());
  EXPECT_EQ(recvs[0].arrived, 300u);
  EXPECT_FALSE(recvs[1].started);
  loose.Complete(VerbsKind::kPart, 1000, 700, 1, 0);
  loose.Short(3, Header(20, 20, 3), 0);
  EXPECT_TRUE(loose.receiver().Advance());
  EXPECT_FALSE(loose.fault().any()) << loose.fault().what;
  const std::byte* const expected[] = {loose.slot(0), loose.slot(1), loose.cell(3, 1), loose.cell(3, 0)};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(recvs[i].code, Code::kOk) << i;
    EXPECT_EQ(recvs[i].data, expected[i] + kVerbsHeaderBytes) << i;
    loose.receiver().Release(&recvs[i]);
  }
  EXPECT_EQ(loose.returns().taken_slices, 4u);
  EXPECT_EQ(loose.returns().releases, 2u);
  EXPECT_EQ(loose.outbox(0).taken(), 3u);
  EXPECT_EQ(loose.outbox(1).taken(), 2u);
}

TEST(VerbsMessagesTest, ASliceThatNoRailBringsOrThatComesTwiceBreaksTheLink) {
  for (const uint32_t second : {0, 2}) {
    LooseReceiver loose(2);
    Recv recvs[3];
    for (Recv& recv : recvs) {
      recv.capacity = 1024;
      ASSERT_TRUE(loose.receiver().Post(&recv));
    }
    loose.Slice(0, Header(1000, 1000, 0), 0);
    loose.Slice(1, Header(1000, 1000, second), 1);
    loose.receiver().Advance();
    loose.Slice(2, Header(1000, 1000, 3), 0);
    loose.receiver().Advance();
    ExpectFault(loose, "a slice's number");
    loose.receiver().FailAll(Code::kAborted);
  }
}

// A newer header may come over another rail before an older one, which then says nothing.
TEST(VerbsMessagesTest, ReturnsThatAreOlderThanOthersChangeNothing) {
  LooseReceiver loose(2);
  VerbsTarget& target = loose.target();
  for (int i = 0; i < LooseReceiver::kSlots; ++i) {
    EXPECT_EQ(target.ClaimSlot(), static_cast<uint32_t>(i));
    target.CountSlice();
  }
  VerbsHeader older = Header(10, 10, 0);
  older.released = 0b01;
  older.releases = older.taken_slices = 1;
  VerbsHeader newer = Header(10, 10, 1);
  newer.released = 0b11;
  newer.releases = newer.taken_slices = 2;
  loose.Short(0, newer, 1);
  EXPECT_EQ(target.ClaimSlot(), 0u);
  loose.Short(0, older, 0);
  EXPECT_FALSE(loose.fault().any()) << loose.fault().what;
  EXPECT_EQ(target.taken_slices(), 2u);
  EXPECT_EQ(target.ClaimSlot(), 1u);
  EXPECT_FALSE(target.HasSlot()) << "the first slot holds a slice again";
}

// What came behind a slice that did not is forgotten: it comes another way.
TEST(VerbsMessagesTest, ArrivalsEndBeforeTheFirstSliceThatIsNotWhole) {
  LooseReceiver loose(3);
  loose.Slice(0, Header(1000, 1000, 1), 1);
  loose.Short(0, Header(10, 10, 0), 0);
  loose.Short(1, Header(10, 10, 2), 0);
  loose.Slice(1, Header(1000, 300, 3), 1);
  loose.Slice(2, Header(1000, 1000, 4), 2);
  loose.receiver().EndArrivals();
  EXPECT_EQ(loose.receiver().whole_slices(), 3u);
  EXPECT_TRUE(loose.receiver().has_partial());
  Recv recvs[4];
  for (Recv& recv : recvs) {
    EXPECT_TRUE(loose.receiver().has_for_next());
    recv.capacity = 1024;
    ASSERT_TRUE(loose.receiver().Post(&recv));
  }
  EXPECT_FALSE(loose.receiver().has_for_next());
  EXPECT_TRUE(loose.receiver().Advance());
  EXPECT_EQ(loose.returns().taken_slices, 3u);
  ASSERT_EQ(loose.receiver().partial(), &recvs[3]);
  EXPECT_EQ(recvs[3].arrived, 300u);
  loose.receiver().PartialArrived(1000);
  EXPECT_EQ(recvs[3].code, Code::kOk);
  EXPECT_FALSE(loose.receiver().HasWork());
  EXPECT_FALSE(loose.receiver().has_messages()) << "the fifth slice comes another way";
  EXPECT_TRUE(loose.inbox(2).empty());
  loose.receiver().FailAll(Code::kAborted);
}

VerbsGreeting Greeting() {
  VerbsGreeting greeting;
  greeting.slots = 8;
  greeting.slot_bytes = 4096;
  greeting.address = 0x7f0000001000;
  greeting.num_rails = 2;
  for (const uint8_t i : {0, 1}) {
    VerbsRailGreeting& rail = greeting.rails[i];
    rail.queue_pair = 17U + i;
    rail.first_packet = 0xabcdef;
    rail.lid = 9;
    rail.ethernet = true;
    rail.mtu = 5;
    rail.gid[15] = i;
    rail.key = 77U + i;
  }
  return greeting;
}

Status Reread(const VerbsGreeting& greeting, VerbsGreeting* read) {
  std::array<std::byte, VerbsGreeting::kBytes> bytes;
  WriteVerbsGreeting(greeting, bytes);
  return ReadVerbsGreeting(bytes, read);
}

TEST(VerbsMessagesTest, AGreetingIsReadAsItWasWritten) {
  VerbsGreeting read;
  ASSERT_TRUE(Reread(Greeting(), &read).ok());
  EXPECT_EQ(read.slots, 8u);
  EXPECT_EQ(read.slot_bytes, 4096u);
  EXPECT_EQ(read.address, 0x7f0000001000u);
  ASSERT_EQ(read.num_rails, 2u);
  for (const uint8_t i : {0, 1}) {
    const VerbsRailGreeting& rail = read.rails[i];
    EXPECT_EQ(rail.queue_pair, 17U + i);
    EXPECT_EQ(rail.first_packet, 0xabcdefu);
    EXPECT_EQ(rail.lid, 9);
    EXPECT_TRUE(rail.ethernet);
    EXPECT_EQ(rail.mtu, 5);
    EXPECT_EQ(rail.gid, Greeting().rails[i].gid);
    EXPECT_EQ(rail.key, 77U + i);
  }
}

TEST(VerbsMessagesTest, AWrongGreetingIsRefused) {
  const auto refused = [](void (*spoil)(VerbsGreeting*)) {
    VerbsGreeting greeting = Greeting();
    spoil(&greeting);
    VerbsGreeting read;
    return Reread(greeting, &read).code() == Code::kProtocol;
  };
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->rails[1].queue_pair = 0; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->rails[1].queue_pair = 1 << 24; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->rails[1].first_packet = 1 << 24; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->rails[1].mtu = 6; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->rails[1].mtu = 0; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->slots = 65; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->slots = 0; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->slot_bytes = uint64_t{1} << 40; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->address = UINT64_MAX - 100; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->num_rails = 0; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->num_rails = 9; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->num_rails = 3; })) << "the third says nothing";
  EXPECT_FALSE(refused([](VerbsGreeting*) {}));
}

TEST(VerbsMessagesTest, AFarewellIsReadAsItWasWritten) {
  std::array<std::byte, VerbsFarewell::kBytes> bytes;
  WriteVerbsFarewell({Code::kProtocol, 12, 34, {{{5, 0xffffffff}, {6, 7}}}}, bytes);
  VerbsFarewell read;
  ASSERT_TRUE(ReadVerbsFarewell(bytes, &read));
  EXPECT_EQ(read.code, Code::kProtocol);
  EXPECT_EQ(read.failure, 12u);
  EXPECT_EQ(read.rails[0], (VerbsRailCounts{5, 0xffffffff}));
  EXPECT_EQ(read.rails[1], (VerbsRailCounts{6, 7}));
  EXPECT_EQ(read.rails[2], VerbsRailCounts());
  bytes[8] = std::byte{200};
  EXPECT_FALSE(ReadVerbsFarewell(bytes, &read));
}

TEST(VerbsMessagesTest, AStopIsToldFromAFarewell) {
  std::array<std::byte, VerbsStop::kBytes> bytes;
  WriteVerbsStop({7, 0xfffffff0}, bytes);
  VerbsStop stop;
  VerbsFarewell farewell;
  ASSERT_TRUE(ReadVerbsStop(bytes, &stop));
  EXPECT_EQ(stop.failure, 7u);
  EXPECT_EQ(stop.slices, 0xfffffff0u);
  EXPECT_FALSE(ReadVerbsFarewell(bytes, &farewell));
  bytes.back() = std::byte{1};
  EXPECT_FALSE(ReadVerbsStop(bytes, &stop)) << "a reserved field";
  WriteVerbsFarewell({}, bytes);
  EXPECT_FALSE(ReadVerbsStop(bytes, &stop));
}

}  // namespace
}  // namespace annulus
