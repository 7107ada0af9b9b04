// annulus_comm_counters and annulus_comm_peer_counters: every number that can be known is exact, and what goes on is in
// it.
#include <annulus.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

annulus_counters_t Counters(const annulus_comm_t* comm) {
  annulus_counters_t counters{};
  counters.struct_bytes = sizeof counters;
  EXPECT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_OK) << LastMessage();
  return counters;
}

annulus_peer_counters_t PeerCounters(const annulus_comm_t* comm, int peer) {
  annulus_peer_counters_t counters{};
  counters.struct_bytes = sizeof counters;
  EXPECT_EQ(annulus_comm_peer_counters(comm, peer, &counters), ANNULUS_OK) << LastMessage();
  return counters;
}

struct Bytes {
  uint64_t sent;
  uint64_t received;
};

annulus_transport_counters_t TransportCounters(const annulus_comm_t* comm, int index) {
  annulus_transport_counters_t counters{};
  counters.struct_bytes = sizeof counters;
  EXPECT_EQ(annulus_comm_transport_counters(comm, index, &counters), ANNULUS_OK) << LastMessage();
  return counters;
}

// Through the one transport that is in use; nothing may have gone through the others.
Bytes Through(const std::string& transport, const annulus_comm_t* comm) {
  Bytes own{};
  int found = 0;
  for (int index = 0;; ++index) {
    const annulus_transport_counters_t counters = TransportCounters(comm, index);
    if (std::string(counters.transport).empty()) break;
    if (counters.transport != transport) {
      EXPECT_EQ(counters.sent_bytes + counters.received_bytes + counters.retransmits, 0u) << counters.transport;
      continue;
    }
    ++found;
    own = {counters.sent_bytes, counters.received_bytes};
  }
  EXPECT_EQ(found, 1) << transport;
  return own;
}

class CountersTest : public testing::TestWithParam<const char*> {
 protected:
  ClusterConfig Config(int nranks) const {
    ClusterConfig config;
    config.nranks = nranks;
    config.transport = GetParam();
    return config;
  }
};

TEST_P(CountersTest, RingAndOneHopMoveWhatTheirSchedulesSay) {
  constexpr int kRanks = 3;
  constexpr size_t kLarge = 3 * 40'000;  // Elements: chunks are equal.
  constexpr size_t kSmall = 12;
  Cluster(Config(kRanks)).Run([](annulus_comm_t* comm, int rank) {
    Numbers out(kLarge);
    ASSERT_EQ(Sum(comm, Contribution(rank, kLarge, 1), &out), ANNULUS_OK);
    annulus_counters_t counters = Counters(comm);
    EXPECT_EQ(counters.collectives, 1u);
    EXPECT_EQ(counters.data_bytes, kLarge * 8);
    const uint64_t ring_bytes = 2 * (kRanks - 1) * (kLarge / kRanks) * 8;
    EXPECT_EQ(Through(GetParam(), comm).sent, ring_bytes);
    EXPECT_EQ(Through(GetParam(), comm).received, ring_bytes);
    const int next = (rank + 1) % kRanks;
    const int prev = (rank + 2) % kRanks;
    EXPECT_EQ(PeerCounters(comm, next).sent_bytes, ring_bytes);
    EXPECT_EQ(PeerCounters(comm, next).received_bytes, 0u);
    EXPECT_EQ(PeerCounters(comm, prev).received_bytes, ring_bytes);
    EXPECT_STREQ(PeerCounters(comm, prev).transport, GetParam());

    Numbers small(kSmall);
    ASSERT_EQ(Sum(comm, Contribution(rank, kSmall, 1), &small), ANNULUS_OK);
    counters = Counters(comm);
    EXPECT_EQ(counters.collectives, 2u);
    EXPECT_EQ(counters.data_bytes, (kLarge + kSmall) * 8);
    EXPECT_EQ(Through(GetParam(), comm).sent, ring_bytes + (kRanks - 1) * kSmall * 8);
    EXPECT_EQ(Through(GetParam(), comm).received, ring_bytes + (kRanks - 1) * kSmall * 8);
    EXPECT_GT(counters.driven_ns, 0u);
    EXPECT_LE(counters.waited_ns, counters.driven_ns);
    EXPECT_EQ(counters.collectives_failed + counters.messages + counters.messages_failed, 0u);
  });
}

TEST_P(CountersTest, MessagesCountApart) {
  constexpr size_t kCount = 50'000;
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    std::vector<float> data(kCount, 1.0F);
    const annulus_status_t status = rank == 0 ? annulus_send(comm, data.data(), kCount, ANNULUS_FLOAT32, 1)
                                              : annulus_recv(comm, data.data(), kCount, ANNULUS_FLOAT32, 0);
    ASSERT_EQ(status, ANNULUS_OK);
    const annulus_counters_t counters = Counters(comm);
    EXPECT_EQ(counters.messages, 1u);
    EXPECT_EQ(counters.collectives, 0u);
    EXPECT_EQ(counters.data_bytes, rank == 0 ? kCount * 4 : 0);
    const Bytes bytes = Through(GetParam(), comm);
    EXPECT_EQ(rank == 0 ? bytes.sent : bytes.received, kCount * 4);
    EXPECT_EQ(rank == 0 ? bytes.received : bytes.sent, 0u);
  });
}

// Rank 1 enters only when rank 0's counters, which it looks at meanwhile, show the wait for it.
TEST_P(CountersTest, ALateRankIsTheSlowestPeerAlreadyWhileItIsWaitedFor) {
  constexpr uint64_t kLate = 30 * kMillisecond;
  std::atomic<annulus_comm_t*> waiting{nullptr};
  Tally done;
  Cluster(Config(2)).Run([&](annulus_comm_t* comm, int rank) {
    Numbers out(8);
    if (rank == 0) {
      waiting.store(comm);
    } else {
      const Deadline deadline = DeadlineAfter(kPatience);
      while (Now() < deadline) {
        const annulus_comm_t* other = waiting.load();
        if (other != nullptr && PeerCounters(other, 1).waited_ns > kLate && Counters(other).sleeps > 0) break;
        std::this_thread::yield();
      }
      ASSERT_LT(Now(), deadline);
    }
    ASSERT_EQ(Sum(comm, Contribution(rank, 8, 1), &out), ANNULUS_OK);
    if (rank == 0) {
      const annulus_counters_t counters = Counters(comm);
      EXPECT_EQ(counters.slowest_peer, 1);
      EXPECT_GT(counters.slowest_peer_ns, kLate);
      EXPECT_LE(counters.slowest_peer_ns, counters.waited_ns);
      EXPECT_LE(counters.waited_ns, counters.driven_ns);
      EXPECT_GE(counters.sleeps, 1u);
      EXPECT_EQ(PeerCounters(comm, 1).waited_ns, counters.slowest_peer_ns);
    }
    done.Add();
    ASSERT_TRUE(done.WaitFor(2));  // Nobody looks at a communicator that is gone.
  });
}

TEST_P(CountersTest, WhatFailsIsCountedAsFailedAndRefusedCallsAreNot) {
  Tally done;
  Cluster(Config(2)).Run([&done](annulus_comm_t* comm, int rank) {
    annulus_request_t* sum = nullptr;
    annulus_request_t* message = nullptr;
    Numbers in(8), out(8);
    if (rank == 0) {
      ASSERT_EQ(SumAsync(comm, in, &out, &sum), ANNULUS_OK);
      ASSERT_EQ(annulus_recv_async(comm, out.data(), 1, ANNULUS_INT64, 1, &message), ANNULUS_OK);
      EXPECT_EQ(annulus_broadcast(comm, in.data(), out.data(), 1, ANNULUS_INT64, 7), ANNULUS_INVALID_ARGUMENT);
      ASSERT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
      EXPECT_EQ(annulus_request_wait(sum, -1), ANNULUS_ABORTED);
      EXPECT_EQ(annulus_request_wait(message, -1), ANNULUS_ABORTED);
      EXPECT_EQ(Sum(comm, in, &out), ANNULUS_ABORTED);
      const annulus_counters_t counters = Counters(comm);
      EXPECT_EQ(counters.collectives_failed, 1u);
      EXPECT_EQ(counters.messages_failed, 1u);
      EXPECT_EQ(counters.collectives + counters.messages + counters.data_bytes, 0u);
      // Also of sockets that have closed: the kernel probes a few times when their end is not acknowledged at once.
      for (const int index : {0, 1, 2}) EXPECT_LT(TransportCounters(comm, index).retransmits, 100u);
      annulus_request_free(sum);
      annulus_request_free(message);
      done.Add();
    } else {
      ASSERT_TRUE(done.WaitFor(1));  // It never joins in.
      EXPECT_EQ(annulus_barrier(comm), ANNULUS_ABORTED);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, CountersTest, testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST(CountersArguments, AreCheckedAndAnOlderStructIsFilledAsFarAsItGoes) {
  ClusterConfig config;
  config.nranks = 1;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    annulus_counters_t counters{};
    EXPECT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_INVALID_ARGUMENT);
    EXPECT_NE(LastMessage().find("sizeof(annulus_counters_t)"), std::string::npos);
    counters.struct_bytes = sizeof counters;
    EXPECT_EQ(annulus_comm_counters(nullptr, &counters), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_comm_counters(comm, nullptr), ANNULUS_INVALID_ARGUMENT);
    annulus_peer_counters_t peer{};
    peer.struct_bytes = sizeof peer;
    for (const int wrong : {-1, rank, 1}) {
      EXPECT_EQ(annulus_comm_peer_counters(comm, wrong, &peer), ANNULUS_INVALID_ARGUMENT) << wrong;
    }
    annulus_transport_counters_t transport{};
    EXPECT_EQ(annulus_comm_transport_counters(comm, 0, &transport), ANNULUS_INVALID_ARGUMENT);
    transport.struct_bytes = sizeof transport;
    EXPECT_EQ(annulus_comm_transport_counters(comm, -1, &transport), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_comm_transport_counters(nullptr, 0, &transport), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_comm_transport_counters(comm, 0, nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_STREQ(TransportCounters(comm, 0).transport, "shm");
    EXPECT_STREQ(TransportCounters(comm, 1).transport, "verbs");
    EXPECT_STREQ(TransportCounters(comm, 2).transport, "tcp");
    EXPECT_STREQ(TransportCounters(comm, 3).transport, "");
    EXPECT_STREQ(TransportCounters(comm, 1000).transport, "");
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    EXPECT_EQ(Counters(comm).slowest_peer, -1);
    std::memset(&counters, 0x5a, sizeof counters);
    counters.struct_bytes = offsetof(annulus_counters_t, collectives_failed);
    ASSERT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_OK);
    EXPECT_EQ(counters.collectives, 1u);
    EXPECT_EQ(counters.collectives_failed, 0x5a5a5a5a5a5a5a5au);
    EXPECT_EQ(counters.struct_bytes, offsetof(annulus_counters_t, collectives_failed));
  });
}

}  // namespace
}  // namespace annulus
