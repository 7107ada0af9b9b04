// Sends that are started while other messages are posted: they move at once, and nobody has to come for them.

#include <annulus.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr size_t kCount = 5;

annulus_status_t Finish(annulus_request_t* request) {
  const annulus_status_t status = annulus_request_wait(request, -1);
  EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
  return status;
}

// A wait drives what else is posted now and then, once in 32 times; a send that is only being started never has to. The
// progress thread may have the turn for a moment, and then a send is queued: so a long row is enough.
TEST(StartedSendsTest, TheyMoveWhenTheyAreStartedHoweverManyHaveMovedBesideOthers) {
  constexpr int64_t kRow = 40;
  constexpr int kMost = 5000;
  ClusterConfig config;
  config.transport = "shm";
  config.nranks = 2;
  config.timeout_ms = kFarTimeoutMs;
  const auto messages = [](annulus_comm_t* comm) {
    annulus_counters_t counters{};
    counters.struct_bytes = sizeof counters;
    EXPECT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_OK);
    return counters.messages;
  };
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    Numbers sent(kCount, rank);
    Numbers received(kCount);
    annulus_request_t* other = nullptr;
    if (rank == 0) {
      ASSERT_EQ(annulus_recv_async(comm, received.data(), kCount, ANNULUS_INT64, 1, &other), ANNULUS_OK);
    }
    int64_t row = 0;  // Sends in a row that have moved at once.
    for (int i = 0; i < kMost && row < kRow; ++i) {
      if (rank == 0) {
        const uint64_t before = messages(comm);
        annulus_request_t* request = nullptr;
        ASSERT_EQ(annulus_send_async(comm, sent.data(), kCount, ANNULUS_INT64, 1, &request), ANNULUS_OK);
        row = messages(comm) == before + 1 ? row + 1 : 0;
        ASSERT_EQ(Finish(request), ANNULUS_OK);
      } else {
        ASSERT_EQ(annulus_recv(comm, received.data(), kCount, ANNULUS_INT64, 0), ANNULUS_OK);
      }
      ASSERT_EQ(annulus_broadcast(comm, &row, &row, 1, ANNULUS_INT64, 0), ANNULUS_OK);
    }
    EXPECT_EQ(row, kRow);
    if (rank == 1) {
      ASSERT_EQ(annulus_send(comm, sent.data(), kCount, ANNULUS_INT64, 0), ANNULUS_OK);
    } else {
      ASSERT_EQ(Finish(other), ANNULUS_OK);
    }
  });
}

// Rank 0 has more to receive from rank 2 than a look takes in, while each answer of rank 1 comes at once.
TEST(StartedSendsTest, AReceiveIsDrivenBesideAnyNumberOfQuickMessages) {
  constexpr size_t kLarge = size_t{1} << 17;
  constexpr int kMost = 200'000;
  ClusterConfig config;
  config.transport = "shm";
  config.nranks = 3;
  config.timeout_ms = kFarTimeoutMs;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    if (rank == 2) {
      EXPECT_EQ(annulus_send(comm, Numbers(kLarge, 2).data(), kLarge, ANNULUS_INT64, 0), ANNULUS_OK);
      return;
    }
    Numbers large(kLarge);
    std::atomic<int64_t> is_over{0};
    annulus_request_t* other = nullptr;
    if (rank == 0) {
      annulus_call_t call{};
      call.struct_bytes = sizeof call;
      call.kind = ANNULUS_CALL_RECV;
      call.type = ANNULUS_INT64;
      call.root = 2;
      call.recvbuf = large.data();
      call.count = kLarge;
      call.done = [](void* flag, annulus_status_t) { *static_cast<std::atomic<int64_t>*>(flag) = 1; };
      call.context = &is_over;
      ASSERT_EQ(annulus_submit(comm, &call, 1, &other), ANNULUS_OK) << LastMessage(comm);
    }
    int64_t ends = 0;
    for (int i = 0; i < kMost && ends == 0; ++i) {
      const int64_t own = is_over;
      annulus_request_t* receive = nullptr;
      annulus_request_t* send = nullptr;
      ASSERT_EQ(annulus_recv_async(comm, &ends, 1, ANNULUS_INT64, 1 - rank, &receive), ANNULUS_OK);
      ASSERT_EQ(annulus_send_async(comm, &own, 1, ANNULUS_INT64, 1 - rank, &send), ANNULUS_OK);
      ASSERT_EQ(Finish(receive), ANNULUS_OK);
      ASSERT_EQ(Finish(send), ANNULUS_OK);
      if (rank == 0) ends = own;
    }
    EXPECT_EQ(ends, 1);
    if (rank != 0) return;
    EXPECT_EQ(Finish(other), ANNULUS_OK);
    EXPECT_EQ(large, Numbers(kLarge, 2));
  });
}

// Each rank's data is lent, so it is the peers that end its sends, by receiving.
TEST(StartedSendsTest, SendsEndWhileReceivesOfAllSizesWait) {
  constexpr int kRanks = 3;
  ClusterConfig config;
  config.transport = "shm";
  config.shm_stores = "plain";  // Near peers would not lend.
  config.nranks = kRanks;
  config.timeout_ms = kFarTimeoutMs;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    for (const size_t count : {1, 2047, 2048, 4096, 4097, 8192, 32768, 40000}) {
      const Numbers sent(count, rank);
      for (int round = 0; round < 20; ++round) {
        std::vector<Numbers> received(kRanks, Numbers(count, -1));
        std::vector<annulus_request_t*> requests(kRanks);
        for (int peer = 0; peer < kRanks; ++peer) {
          if (peer == rank) continue;
          ASSERT_EQ(annulus_recv_async(comm, received[peer].data(), count, ANNULUS_INT64, peer, &requests[peer]),
                    ANNULUS_OK);
        }
        for (int step = 1; step < kRanks; ++step) {
          const int peer = (rank + step) % kRanks;
          annulus_request_t* send = nullptr;
          if (round % 2 == 0) {
            ASSERT_EQ(annulus_send(comm, sent.data(), count, ANNULUS_INT64, peer), ANNULUS_OK);
          } else {
            ASSERT_EQ(annulus_send_async(comm, sent.data(), count, ANNULUS_INT64, peer, &send), ANNULUS_OK);
            ASSERT_EQ(Finish(send), ANNULUS_OK);
          }
        }
        for (int peer = 0; peer < kRanks; ++peer) {
          if (peer == rank) continue;
          ASSERT_EQ(Finish(requests[peer]), ANNULUS_OK);
          ASSERT_EQ(received[peer], Numbers(count, peer)) << count << " of " << peer << " on " << rank;
        }
      }
    }
  });
}

}  // namespace
}  // namespace annulus
