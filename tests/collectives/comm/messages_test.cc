// Send and receive through the C API, over real links: beside each other, beside collectives, and when they fail.

#include <annulus.h>
#include <gtest/gtest.h>

#include <array>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/comm/message_calls.h"
#include "tests/collectives/harness/calls.h"
#include "tests/collectives/harness/cluster.h"

namespace annulus {
namespace {

TEST_P(MessagesTest, MessagesOfEverySizeGoThereAndBack) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    for (size_t count : {size_t{0}, size_t{1}, size_t{16384}, size_t{16385}, size_t{100000}, size_t{3000001}}) {
      std::vector<int> values = Values(count, 5);
      std::vector<int> arrived(count, -1);
      if (rank == 0) {
        ASSERT_EQ(Send(comm, values, 1), ANNULUS_OK);
      }
      ASSERT_EQ(Receive(comm, &arrived, 1 - rank), ANNULUS_OK);
      if (rank == 1) {
        ASSERT_EQ(Send(comm, arrived, 0), ANNULUS_OK);
      }
      ASSERT_EQ(arrived, values);
    }
  });
}

TEST_P(MessagesTest, LargeMessagesPassEachOther) {
  Cluster(Config(3)).Run([](annulus_comm_t* comm, int rank) {
    constexpr size_t kCount = 700001;
    std::vector<annulus_request_t*> requests;
    std::vector<std::vector<int>> arrived(3, std::vector<int>(kCount));
    const std::vector<int> values = Values(kCount, rank);
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank) continue;
      // Everybody sends first: blocking sends would wait for each other.
      requests.push_back(SendAsync(comm, values, peer));
      requests.push_back(ReceiveAsync(comm, &arrived[peer], peer));
    }
    for (annulus_request_t* request : requests) EXPECT_EQ(Finish(request), ANNULUS_OK);
    for (int peer = 0; peer < 3; ++peer) {
      if (peer != rank) {
        EXPECT_EQ(arrived[peer], Values(kCount, peer));
      }
    }
  });
}

TEST_P(MessagesTest, ManyMessagesKeepTheirOrder) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    constexpr int kMessages = 200;
    std::vector<std::vector<int>> buffers;
    for (int i = 0; i < kMessages; ++i) {
      const size_t count = static_cast<size_t>(i) * 37 % 500;
      buffers.push_back(rank == 0 ? Values(count, i) : std::vector<int>(count));
    }
    std::vector<annulus_request_t*> requests;
    for (std::vector<int>& buffer : buffers)
      requests.push_back(rank == 0 ? SendAsync(comm, buffer, 1) : ReceiveAsync(comm, &buffer, 0));
    for (annulus_request_t* request : requests) ASSERT_EQ(Finish(request), ANNULUS_OK);
    for (int i = 0; i < kMessages; ++i) ASSERT_EQ(buffers[i], Values(buffers[i].size(), i));
  });
}

TEST_P(MessagesTest, APriorityIsRefusedWhereverTheMessageWouldGo) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    for (int i = 0; i < 3; ++i) {
      const int value = i;
      annulus_call_t call{};
      call.struct_bytes = sizeof call;
      call.kind = ANNULUS_CALL_SEND;
      call.type = ANNULUS_INT32;
      call.sendbuf = &value;
      call.count = 1;
      call.root = 1 - rank;
      call.priority = 5;
      EXPECT_EQ(annulus_run(comm, &call), ANNULUS_INVALID_ARGUMENT) << "message " << i;
      ASSERT_EQ(Send(comm, {value}, 1 - rank), ANNULUS_OK);
      std::vector<int> arrived(1);
      ASSERT_EQ(Receive(comm, &arrived, 1 - rank), ANNULUS_OK);
      EXPECT_EQ(arrived[0], i);
    }
  });
}

TEST_P(MessagesTest, CollectivesAndMessagesDoNotWaitForEachOther) {
  Cluster(Config(3)).Run([](annulus_comm_t* comm, int rank) {
    constexpr size_t kCount = 300000;
    std::vector<int> arrived(kCount);
    annulus_request_t* receive = rank == 0 ? ReceiveAsync(comm, &arrived, 2) : nullptr;
    int sum = 0;
    // Rank 2 sends only after these.
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(Sum(comm, rank, &sum), ANNULUS_OK);
      ASSERT_EQ(sum, 3);
    }
    if (rank == 0) {
      EXPECT_EQ(annulus_request_test(receive), ANNULUS_IN_PROGRESS);
    }
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    if (rank == 2) {
      ASSERT_EQ(Send(comm, Values(kCount, 1), 0), ANNULUS_OK);
    }
    if (rank == 0) {
      EXPECT_EQ(Finish(receive), ANNULUS_OK);
      EXPECT_EQ(arrived, Values(kCount, 1));
    }
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

TEST_P(MessagesTest, AThreadThatReceivesHoldsUpNoCollectiveOfAnother) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    for (int round = 0; round < 20; ++round) {
      std::vector<int> arrived(1000);
      int sum = 0;
      if (rank == 0) {
        std::thread receiver([&] { EXPECT_EQ(Receive(comm, &arrived, 1), ANNULUS_OK); });
        EXPECT_EQ(Sum(comm, 1, &sum), ANNULUS_OK);
        receiver.join();
        EXPECT_EQ(arrived, Values(1000, round));
      } else {
        EXPECT_EQ(Sum(comm, 1, &sum), ANNULUS_OK);
        EXPECT_EQ(Send(comm, Values(1000, round), 0), ANNULUS_OK);
      }
      EXPECT_EQ(sum, 2);
    }
  });
}

TEST_P(MessagesTest, DifferentCountsOrTypesAreAMismatchForAll) {
  for (const bool type_differs : {false, true}) {
    Cluster(Config(3)).Run([type_differs](annulus_comm_t* comm, int rank) {
      float values[8] = {};
      annulus_status_t status = ANNULUS_OK;
      if (rank == 1) status = annulus_send(comm, values, type_differs ? 4 : 5, ANNULUS_FLOAT32, 0);
      if (rank == 0) status = annulus_recv(comm, values, 4, type_differs ? ANNULUS_INT32 : ANNULUS_FLOAT32, 1);
      // Who has no part in it, or has sent, learns of it in the next call.
      if (status == ANNULUS_OK) status = annulus_barrier(comm);
      EXPECT_EQ(status, ANNULUS_MISMATCH);
      const char* text = type_differs ? "message #1 from rank 1 has 4 of float32, its receive asks for 4 of int32"
                                      : "message #1 from rank 1 has 5 of float32, its receive asks for 4 of float32";
      EXPECT_NE(LastMessage(comm).find(text), std::string::npos) << LastMessage(comm);
    });
  }
}

TEST_P(MessagesTest, AMessageThatNeverComesEndsAtTheDeadlineAndNamesThePeer) {
  ClusterConfig config = Config(2);
  config.timeout_ms = 300;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    std::vector<int> arrived(3);
    annulus_status_t status = ANNULUS_OK;
    if (rank == 0) status = Receive(comm, &arrived, 1);
    if (rank == 1) {
      annulus_request_t* request = ReceiveAsync(comm, &arrived, 0);
      status = Finish(request);
    }
    EXPECT_EQ(status, ANNULUS_TIMEOUT);
    EXPECT_NE(LastMessage(comm).find("did not send message #1 before its deadline"), std::string::npos)
        << LastMessage(comm);
    EXPECT_EQ(Send(comm, arrived, 1 - rank), ANNULUS_TIMEOUT) << "a failed communicator refuses work";
  });
}

TEST_P(MessagesTest, ALateMessageIsNoFaultOfWhoIsInACollective) {
  const Cluster cluster(Config(4));
  std::latch judged(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&cluster, &judged, rank] {
      UserConfig config = cluster.Config(rank);
      if (rank == 0) config.timeout_ms = 300;
      annulus_comm_t* comm = nullptr;
      ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
      std::vector<int> arrived(3);
      if (rank == 1) {
        judged.wait();
      } else {
        EXPECT_EQ(rank == 0 ? Receive(comm, &arrived, 1) : annulus_barrier(comm), ANNULUS_TIMEOUT);
        annulus_error_t error{};
        error.struct_bytes = sizeof error;
        annulus_comm_verdict(comm, &error);
        EXPECT_EQ(error.rank, 1);
        EXPECT_STREQ(error.collective, "recv");
        EXPECT_EQ(error.sequence, 1u);
        EXPECT_NE(LastMessage(comm).find("rank 1 did not send message #1"), std::string::npos) << LastMessage(comm);
        judged.count_down();
      }
      annulus_comm_destroy(comm);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_P(MessagesTest, APeersEndFailsWhatWaitsForIt) {
  std::latch posted(2);
  Cluster(Config(3)).Run([&posted](annulus_comm_t* comm, int rank) {
    std::vector<int> arrived(3);
    if (rank == 2) return posted.wait();  // Leaves once both wait for it.
    annulus_request_t* request = ReceiveAsync(comm, &arrived, 2);
    posted.count_down();
    EXPECT_EQ(Finish(request), ANNULUS_PEER_LOST);
    annulus_error_t error{};
    error.struct_bytes = sizeof error;
    annulus_comm_verdict(comm, &error);
    EXPECT_EQ(error.rank, 2);
  });
}

TEST_P(MessagesTest, AbortAndDestroyEndPendingMessages) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    std::vector<int> first(3);
    std::vector<int> second(3);
    annulus_request_t* pending = ReceiveAsync(comm, &first, 1 - rank);
    annulus_request_t* behind = ReceiveAsync(comm, &second, 1 - rank);
    const annulus_status_t queued = annulus_barrier(comm);  // All are queued.
    if (rank == 0) {
      EXPECT_EQ(queued, ANNULUS_OK);
      EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
    } else if (queued != ANNULUS_OK) {
      EXPECT_EQ(queued, ANNULUS_ABORTED);  // The abort overtook the end of the barrier.
    }
    EXPECT_EQ(Finish(pending), ANNULUS_ABORTED);
    EXPECT_EQ(Finish(behind), ANNULUS_ABORTED);
  });
  std::vector<int> never(3);  // Outlives the communicators.
  Cluster(Config(2)).Run([&never](annulus_comm_t* comm, int rank) {
    if (rank == 0) ReceiveAsync(comm, &never, 1);  // Freed with its communicator.
  });
}

INSTANTIATE_TEST_SUITE_P(Links, MessagesTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

TEST(MessageArgumentsTest, WrongPeersAndBuffersAreRefusedAndNamed) {
  Cluster(ClusterConfig()).Run([](annulus_comm_t* comm, int rank) {
    float value = 1;
    for (int peer : {-1, 2, rank}) {
      EXPECT_EQ(annulus_send(comm, &value, 1, ANNULUS_FLOAT32, peer), ANNULUS_INVALID_ARGUMENT);
      EXPECT_EQ(LastMessage(comm), "peer is " + std::to_string(peer) + "; allowed: 0 to 1, and not this rank itself");
    }
    EXPECT_EQ(annulus_recv(comm, nullptr, 1, ANNULUS_FLOAT32, 1 - rank), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(LastMessage(comm), "recvbuf is null");
    EXPECT_EQ(annulus_recv_async(comm, &value, 1, ANNULUS_FLOAT32, 1 - rank, nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

// Earlier calls have made everything for short cuts.
TEST(MessageArgumentsTest, WithoutAMeshMessagesAreRefusedAlsoWhereTheyAreStartedAfterOtherCalls) {
  ClusterConfig config;
  config.nranks = 17;
  config.mesh_ranks = 16;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    for (int i = 0; i < 3; ++i) {
      float sum = 1;
      annulus_request_t* request = nullptr;
      ASSERT_EQ(annulus_allreduce_async(comm, &sum, &sum, 1, ANNULUS_FLOAT32, ANNULUS_SUM, &request), ANNULUS_OK);
      ASSERT_EQ(Finish(request), ANNULUS_OK);
    }
    std::array<float, 2> values{};
    annulus_request_t* request = nullptr;
    const int peer = (rank + 2) % 17;
    EXPECT_EQ(annulus_send_async(comm, &values[0], 1, ANNULUS_FLOAT32, peer, &request), ANNULUS_UNSUPPORTED);
    EXPECT_NE(LastMessage(comm).find("ANNULUS_MESH_RANKS is 16"), std::string::npos) << LastMessage(comm);
    EXPECT_EQ(annulus_recv_async(comm, &values[0], 1, ANNULUS_FLOAT32, peer, &request), ANNULUS_UNSUPPORTED);
    Calls calls;
    calls.Rooted(ANNULUS_CALL_SEND, &values[0], nullptr, 1, ANNULUS_FLOAT32, peer);
    calls.Rooted(ANNULUS_CALL_RECV, nullptr, &values[1], 1, ANNULUS_FLOAT32, peer);
    EXPECT_EQ(calls.Do(comm), ANNULUS_UNSUPPORTED);
    EXPECT_EQ(annulus_sendrecv(comm, &values[0], 1, peer, &values[1], 1, peer, ANNULUS_FLOAT32), ANNULUS_UNSUPPORTED);
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

}  // namespace
}  // namespace annulus
