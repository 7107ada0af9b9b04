// What a peer may send over a verbs link, and what breaks the link: each wrong field is found before it is used.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "tests/transport/verbs/loose_receiver.h"
#include "transport/verbs/verbs_format.h"

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
  EXPECT_EQ(loose.returns().taken, 3u) << "cells are taken when they are released";
  for (Recv& recv : recvs) loose.receiver().Release(&recv);
  EXPECT_EQ(loose.returns().taken, 5u);
  EXPECT_EQ(loose.returns().released, uint64_t{1} << 2);
  EXPECT_EQ(loose.receiver().received(), 5u);
}

TEST(VerbsMessagesTest, AWrongFieldBreaksTheLink) {
  struct Wrong {
    const char* what;
    void (*send)(LooseReceiver* loose);
  };
  const Wrong all[] = {
      {"a slot's number", [](LooseReceiver* loose) { loose->Complete(VerbsKind::kSlice, 4, 64, 0); }},
      {"a message's size", [](LooseReceiver* loose) { loose->Complete(VerbsKind::kShort, 0, 63, 0); }},
      {"a message's size",
       [](LooseReceiver* loose) {
         WriteVerbsHeader(Header(10, 10, 0), loose->cell(0));
         loose->Complete(VerbsKind::kShort, 0, 64 + 11, 0);
       }},
      {"a header's content", [](LooseReceiver* loose) { loose->Slice(0, Header(10, 11, 0)); }},
      {"a slice's size", [](LooseReceiver* loose) { loose->Slice(0, Header(1025, 1025, 0)); }},
      {"a slice's number", [](LooseReceiver* loose) { loose->Slice(0, Header(1000, 1000, 1)); }},
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
      {"a released slot that it does not have",
       [](LooseReceiver* loose) {
         VerbsHeader header = Header(1000, 1000, 0);
         header.released = 1;
         loose->Slice(0, header);
       }},
      {"a count of taken messages",
       [](LooseReceiver* loose) {
         VerbsHeader header = Header(1000, 1000, 0);
         header.taken = 1;
         loose->Slice(0, header);
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
         loose->receiver().TakeCompletion(completion, 0);
       }},
  };
  for (const Wrong& wrong : all) {
    LooseReceiver loose;
    wrong.send(&loose);
    ExpectFault(loose, wrong.what);
  }
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

VerbsGreeting Greeting() {
  VerbsGreeting greeting;
  greeting.queue_pair = 17;
  greeting.first_packet = 0xabcdef;
  greeting.lid = 9;
  greeting.ethernet = true;
  greeting.mtu = 5;
  greeting.gid[15] = 1;
  greeting.slots = 8;
  greeting.slot_bytes = 4096;
  greeting.address = 0x7f0000001000;
  greeting.key = 77;
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
  EXPECT_EQ(read.queue_pair, 17u);
  EXPECT_EQ(read.first_packet, 0xabcdefu);
  EXPECT_EQ(read.lid, 9);
  EXPECT_TRUE(read.ethernet);
  EXPECT_EQ(read.mtu, 5);
  EXPECT_EQ(read.gid, Greeting().gid);
  EXPECT_EQ(read.slots, 8u);
  EXPECT_EQ(read.slot_bytes, 4096u);
  EXPECT_EQ(read.address, 0x7f0000001000u);
  EXPECT_EQ(read.key, 77u);
}

TEST(VerbsMessagesTest, AWrongGreetingIsRefused) {
  const auto refused = [](void (*spoil)(VerbsGreeting*)) {
    VerbsGreeting greeting = Greeting();
    spoil(&greeting);
    VerbsGreeting read;
    return Reread(greeting, &read).code() == Code::kProtocol;
  };
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->queue_pair = 0; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->queue_pair = 1 << 24; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->first_packet = 1 << 24; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->mtu = 6; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->mtu = 0; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->slots = 65; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->slots = 0; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->slot_bytes = uint64_t{1} << 40; }));
  EXPECT_TRUE(refused([](VerbsGreeting* greeting) { greeting->address = UINT64_MAX - 100; }));
  EXPECT_FALSE(refused([](VerbsGreeting*) {}));
}

TEST(VerbsMessagesTest, AFarewellIsReadAsItWasWritten) {
  std::array<std::byte, VerbsFarewell::kBytes> bytes;
  WriteVerbsFarewell({Code::kProtocol, 12, 5, 0xffffffff}, bytes);
  VerbsFarewell read;
  ASSERT_TRUE(ReadVerbsFarewell(bytes, &read));
  EXPECT_EQ(read.code, Code::kProtocol);
  EXPECT_EQ(read.failure, 12u);
  EXPECT_EQ(read.sent, 5u);
  EXPECT_EQ(read.received, 0xffffffffu);
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
