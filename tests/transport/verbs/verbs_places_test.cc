// Slices that a verbs link is to read from the peer's memory: which words about them break the link, and when READs
// begin and receives complete, whatever order the READs end in.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "tests/transport/verbs/loose_receiver.h"
#include "transport/transport.h"
#include "transport/verbs/rail/verbs_format.h"

namespace annulus {
namespace {

constexpr VerbsPlace kPlace{0x7f0000001000, 77};

VerbsHeader Header(uint32_t bytes, uint32_t sequence) {
  VerbsHeader header;
  header.bytes = bytes;
  header.sequence = sequence;
  return header;
}

// Spoils a slice's place and sends it.
void SendSpoilt(LooseReceiver* loose, size_t byte, uint32_t message_bytes) {
  VerbsHeader header = Header(100, 0);
  header.placed = true;
  WriteVerbsHeader(header, loose->slot(0));
  WriteVerbsPlace(kPlace, loose->slot(0) + kVerbsHeaderBytes);
  loose->slot(0)[kVerbsHeaderBytes + byte] ^= std::byte{0x80};
  loose->Complete(VerbsKind::kSlice, 0, message_bytes, 0);
}

struct Wrong {
  const char* what;
  void (*send)(LooseReceiver* loose);
};

TEST(VerbsPlacesTest, AWrongPlaceBreaksTheLink) {
  constexpr uint32_t kWhole = kVerbsHeaderBytes + kVerbsPlaceBytes;
  const Wrong all[] = {
      {"a slice to be read, number",
       [](LooseReceiver* loose) {
         VerbsHeader header = Header(16, 0);
         header.placed = true;
         header.ready = 16;
         loose->Short(0, header);
       }},
      {"a message's size", [](LooseReceiver* loose) { SendSpoilt(loose, 0, kWhole - 1); }},
      {"a message's size", [](LooseReceiver* loose) { SendSpoilt(loose, 0, kWhole + 1); }},
      {"a message's size", [](LooseReceiver* loose) { SendSpoilt(loose, 0, kVerbsHeaderBytes); }},
      {"a slice at a place of bytes", [](LooseReceiver* loose) { SendSpoilt(loose, kVerbsPlaceBytes - 1, kWhole); }},
      {"a slice at a place of bytes", [](LooseReceiver* loose) { loose->Placed(0, Header(0, 0), kPlace); }},
      {"a slice at a place of bytes",
       [](LooseReceiver* loose) {
         loose->Placed(0, Header(100, 0), {UINT64_MAX - 99, 1});
       }},
      {"a slice's size", [](LooseReceiver* loose) { loose->Placed(0, Header(1025, 0), kPlace); }},
      {"a slice's number", [](LooseReceiver* loose) { loose->Placed(0, Header(100, 0x7fffffff), kPlace); }},
      {"a part's end",
       [](LooseReceiver* loose) {
         loose->Placed(0, Header(100, 0), kPlace);
         loose->Complete(VerbsKind::kPart, 100, 100, 0);
       }},
      {"a slot that is in use",
       [](LooseReceiver* loose) {
         loose->Placed(0, Header(100, 0), kPlace);
         loose->Placed(0, Header(100, 1), kPlace);
       }},
      {"a completion of a READ that was not posted", [](LooseReceiver* loose) { loose->reads().OnCompletion(1); }},
      {"a completion of a READ that was not posted", [](LooseReceiver* loose) { loose->reads().OnCompletion(99); }},
  };
  for (const Wrong& wrong : all) {
    LooseReceiver loose;
    wrong.send(&loose);
    EXPECT_STREQ(loose.fault().what, wrong.what);
  }
}

TEST(VerbsPlacesTest, WithoutReadsAPlaceBreaksTheLink) {
  LooseReceiver loose(1, 0);
  loose.Placed(0, Header(100, 0), kPlace);
  EXPECT_STREQ(loose.fault().what, "a slice to be read, number");
}

TEST(VerbsPlacesTest, AReadBeginsOnceItsReceiveIsPostedAndThereIsRoom) {
  LooseReceiver loose(1, 2);
  std::array<Recv, 4> recvs;
  for (uint32_t i = 0; i < 4; ++i) loose.Placed(3 - i, Header(100 + i, i), kPlace);
  loose.receiver().Read();
  EXPECT_FALSE(loose.receiver().CanRead());
  for (uint32_t slot = 0; slot < 4; ++slot) EXPECT_FALSE(loose.reads().is_under_way(slot));
  for (Recv& recv : recvs) {
    recv.capacity = 1024;
    ASSERT_TRUE(loose.receiver().Post(&recv));
  }
  EXPECT_TRUE(loose.receiver().CanRead());
  loose.receiver().Read();
  EXPECT_FALSE(loose.receiver().CanRead());
  EXPECT_TRUE(loose.reads().is_under_way(3) && loose.reads().is_under_way(2));
  EXPECT_FALSE(loose.reads().is_under_way(1));
  // The second comes first, and waits.
  loose.reads().OnCompletion(2);
  loose.receiver().Advance();
  EXPECT_FALSE(recvs[0].started || recvs[1].started || loose.receiver().HasWork());
  loose.receiver().Read();
  EXPECT_TRUE(loose.reads().is_under_way(1));
  loose.reads().OnCompletion(3);
  EXPECT_TRUE(loose.receiver().HasWork());
  loose.receiver().Advance();
  for (const uint32_t i : {0, 1}) {
    EXPECT_EQ(recvs[i].code, Code::kOk);
    EXPECT_EQ(recvs[i].arrived, 100 + i);
    EXPECT_EQ(recvs[i].data, loose.slot(3 - i) + kVerbsHeaderBytes);
  }
  EXPECT_EQ(loose.returns().taken_slices, 2u);
  EXPECT_TRUE(loose.returns().untold_lent);
  EXPECT_EQ(loose.returns().releases, 0u) << "the owner has the slots";
  for (const uint32_t i : {0, 1}) loose.receiver().Release(&recvs[i]);
  EXPECT_EQ(loose.returns().releases, 2u);
  EXPECT_FALSE(loose.fault().any()) << loose.fault().what;
  loose.receiver().FailAll(Code::kAborted);
}

TEST(VerbsPlacesTest, ASliceThatIsTooLargeForItsReceiveIsNotRead) {
  LooseReceiver loose;
  std::array<Recv, 2> recvs;
  recvs[0].capacity = 100;
  recvs[1].capacity = 99;
  for (Recv& recv : recvs) ASSERT_TRUE(loose.receiver().Post(&recv));
  loose.Placed(0, Header(100, 0), kPlace);
  loose.Placed(1, Header(100, 1), kPlace);
  loose.receiver().Read();
  EXPECT_TRUE(loose.reads().is_under_way(0));
  EXPECT_FALSE(loose.reads().is_under_way(1));
  EXPECT_FALSE(loose.receiver().CanRead()) << "nobody spins over it";
  loose.receiver().Advance();
  EXPECT_FALSE(loose.fault().any()) << "it is not next yet";
  loose.reads().OnCompletion(0);
  loose.receiver().Advance();
  EXPECT_STREQ(loose.fault().what, "a slice for a smaller receive, of bytes");
  EXPECT_TRUE(recvs[1].started);
  EXPECT_EQ(recvs[1].bytes, 100u);
  loose.receiver().FailAll(Code::kProtocol);
}

TEST(VerbsPlacesTest, ArrivalsEndBeforeTheFirstSliceThatWasNotRead) {
  for (const size_t rails : {1, 2}) {
    LooseReceiver loose(static_cast<int>(rails), 4);
    std::array<Recv, 4> recvs;
    for (Recv& recv : recvs) {
      recv.capacity = 1024;
      ASSERT_TRUE(loose.receiver().Post(&recv));
    }
    for (uint32_t i = 0; i < 3; ++i) loose.Placed(i, Header(100, i), kPlace, i % rails);
    loose.Short(0, Header(0, 3), rails - 1);
    loose.receiver().Read();
    loose.reads().OnCompletion(0);
    loose.reads().OnCompletion(2);
    loose.receiver().EndArrivals();
    EXPECT_EQ(loose.receiver().whole_slices(), 1u);
    EXPECT_FALSE(loose.receiver().has_partial());
    EXPECT_FALSE(recvs[1].started);
    for (const uint32_t i : {1, 2, 3}) EXPECT_EQ(loose.receiver().TakeReceive(), &recvs[i]);
    EXPECT_EQ(loose.receiver().TakeReceive(), nullptr);
    loose.receiver().Advance();
    EXPECT_EQ(recvs[0].code, Code::kOk);
    EXPECT_FALSE(loose.receiver().HasWork());
  }
}

TEST(VerbsPlacesTest, ANumberOfReadsThatNoDeviceHasIsRefused) {
  VerbsGreeting greeting;
  greeting.slots = 8;
  greeting.slot_bytes = 4096;
  greeting.num_rails = 1;
  greeting.rails[0].queue_pair = 17;
  greeting.rails[0].ethernet = true;
  greeting.rails[0].mtu = 5;
  const auto reread = [&greeting](VerbsGreeting* read) {
    std::array<std::byte, VerbsGreeting::kBytes> bytes;
    WriteVerbsGreeting(greeting, bytes);
    return ReadVerbsGreeting(bytes, read).code();
  };
  VerbsGreeting read;
  greeting.rails[0].reads = kMostVerbsReads;
  greeting.rails[0].answers = 3;
  ASSERT_EQ(reread(&read), Code::kOk);
  EXPECT_EQ(read.rails[0].reads, kMostVerbsReads);
  EXPECT_EQ(read.rails[0].answers, 3);
  greeting.rails[0].reads = kMostVerbsReads + 1;
  EXPECT_EQ(reread(&read), Code::kProtocol);
  greeting.rails[0].reads = 0;
  greeting.rails[0].answers = kMostVerbsReads + 1;
  EXPECT_EQ(reread(&read), Code::kProtocol);
}

}  // namespace
}  // namespace annulus
