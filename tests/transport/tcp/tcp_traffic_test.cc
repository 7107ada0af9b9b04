// Tests of heavy traffic on TCP links, each end driven by a thread of its own; and that moving data allocates nothing.
#include <gtest/gtest.h>

#include <thread>

#include "tests/transport/allocation_counter.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/contract/contract_traffic.h"
#include "transport/tcp/tcp.h"

namespace annulus {
namespace {

struct Variant {
  const char* name;
  int lanes;
  bool checksum;
  bool reconnects = false;
};

class TcpTrafficTest : public ::testing::TestWithParam<Variant> {
 protected:
  void Open(const LinkOptions& options) {
    const TransportLink::MakeTransport make = [](TransportConfig config) {
      config.settings.Set("tcp_sockets", GetParam().lanes);
      config.settings.Set("checksum", GetParam().checksum);
      config.settings.Set("reconnect_ms", GetParam().reconnects ? 10'000 : 0);
      return CreateTcpTransport(config);
    };
    link_ = TransportLink::Open(make, nullptr, options);
    ASSERT_NE(link_, nullptr);
  }

  std::unique_ptr<ContractLink> link_;
};

TEST_P(TcpTrafficTest, MegabyteSlicesInRandomPiecesCrossBothWays) {
  constexpr size_t kBytes = size_t{1} << 20;
  Open({.slot_bytes = kBytes, .slots = 4});
  const Deadline deadline = DeadlineAfter(120 * kSecond);
  auto drive = [&](int side) {
    Plan plan{.seed = 61u + side, .slices = 40, .max_bytes = kBytes, .window = 6, .gradual = true, .landing = true};
    SliceTalker talker(&link_->end(side), plan);
    plan.seed = 61u + (1 - side);
    SliceListener listener(&link_->end(side), plan);
    while (!(talker.done() && listener.done())) {
      bool moved = false;
      const Status status = link_->end(side).Progress(&moved);
      ASSERT_TRUE(status.ok()) << status.ToString();
      moved |= talker.Step();
      moved |= listener.Step();
      ASSERT_FALSE(talker.broken() || listener.broken());
      ASSERT_LT(Now(), deadline);
      if (!moved && link_->end(side).Arm()) link_->reactor(side)->WaitUntil(deadline);
    }
  };
  std::thread other(drive, 1);
  drive(0);
  other.join();
}

TEST_P(TcpTrafficTest, MovingDataAllocatesNothing) {
  constexpr uint32_t kBytes = 65536;
  constexpr int kWindow = 4;
  Open({.slot_bytes = kBytes, .slots = kWindow});
  std::vector<std::byte> memory(kBytes, std::byte{7});
  std::vector<Send> sends(kWindow);
  std::vector<Recv> recvs(kWindow);
  const Deadline deadline = DeadlineAfter(60 * kSecond);
  const size_t before = AllocationsOfThisThread();
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < kWindow; ++i) {
      sends[i] = Send();
      sends[i].data = memory.data();
      sends[i].bytes = kBytes;
      sends[i].ready = round % 2 == 0 ? kBytes : kBytes / 2;
      recvs[i] = Recv();
      recvs[i].capacity = kBytes;
      ASSERT_TRUE(link_->end(0).PostSend(&sends[i]).ok() && link_->end(1).PostRecv(&recvs[i]).ok());
    }
    while (recvs.back().code == Code::kInProgress) {
      bool moved = false;
      for (Send& send : sends) send.ready = kBytes;
      ASSERT_TRUE(link_->end(0).Progress(&moved).ok() && link_->end(1).Progress(&moved).ok());
      ASSERT_LT(Now(), deadline);
    }
    for (Recv& recv : recvs) link_->end(1).Release(&recv);
  }
  EXPECT_EQ(AllocationsOfThisThread() - before, 0u);
}

INSTANTIATE_TEST_SUITE_P(Variants, TcpTrafficTest,
                         ::testing::Values(Variant{"OneSocket", 1, false}, Variant{"ThreeSockets", 3, false},
                                           Variant{"Checksummed", 2, true}, Variant{"Reconnecting", 1, false, true},
                                           Variant{"ReconnectingOfThree", 3, true, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace annulus
