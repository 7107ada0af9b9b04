// annulus_sendrecv: exchanges of every size, in a ring and with peers that use other functions; what is refused; and
// what fails.

#include <annulus.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/collectives/comm/message_calls.h"
#include "tests/collectives/harness/cluster.h"

namespace annulus {
namespace {

class SendrecvTest : public MessagesTest {};

annulus_status_t Exchange(annulus_comm_t* comm, const std::vector<int>& values, int dest, std::vector<int>* arrived,
                          int source) {
  return annulus_sendrecv(comm, values.data(), values.size(), dest, arrived->data(), arrived->size(), source,
                          ANNULUS_INT32);
}

std::string LastMessage() {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  EXPECT_EQ(annulus_last_error(&error), ANNULUS_OK);
  return error.message;
}

// Around a ring everybody sends first, which blocking sends of large messages could not.
TEST_P(SendrecvTest, MessagesOfEverySizeGoAroundARing) {
  for (const int nranks : {2, 3}) {
    Cluster(Config(nranks)).Run([nranks](annulus_comm_t* comm, int rank) {
      const int next = (rank + 1) % nranks, previous = (rank + nranks - 1) % nranks;
      for (size_t count :
           {size_t{0}, size_t{2}, size_t{1000}, size_t{8191}, size_t{8192}, size_t{65537}, size_t{700001}}) {
        for (int round = 0; round < 3; ++round) {
          std::vector<int> arrived(count, -1);
          ASSERT_EQ(Exchange(comm, Values(count, rank + round), next, &arrived, previous), ANNULUS_OK);
          ASSERT_EQ(arrived, Values(count, previous + round)) << count;
        }
      }
    });
  }
}

// The two parts need not have one size, nor one peer.
TEST_P(SendrecvTest, BothPartsHaveTheirOwnSizes) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    std::minstd_rand random(7);  // The same on both ranks.
    for (int round = 0; round < 60; ++round) {
      const size_t most = round % 5 == 0 ? 200000 : 3000;
      const size_t counts[2] = {random() % most, random() % most};
      std::vector<int> arrived(counts[1 - rank], -1);
      ASSERT_EQ(Exchange(comm, Values(counts[rank], round + rank), 1 - rank, &arrived, 1 - rank), ANNULUS_OK);
      ASSERT_EQ(arrived, Values(counts[1 - rank], round + 1 - rank));
    }
  });
}

TEST_P(SendrecvTest, ThePeerMayUseOtherFunctions) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    for (size_t count : {size_t{1}, size_t{5000}, size_t{300000}}) {
      for (int round = 0; round < 4; ++round) {
        const std::vector<int> values = Values(count, 10 * round + rank);
        std::vector<int> arrived(count, -1);
        if (rank == 0) {
          ASSERT_EQ(Exchange(comm, values, 1, &arrived, 1), ANNULUS_OK);
        } else if (round % 2 == 0) {
          ASSERT_EQ(Receive(comm, &arrived, 0), ANNULUS_OK);
          ASSERT_EQ(Send(comm, values, 0), ANNULUS_OK);
        } else {
          annulus_request_t* const sent = SendAsync(comm, values, 0);
          ASSERT_EQ(Receive(comm, &arrived, 0), ANNULUS_OK);
          ASSERT_EQ(Finish(sent), ANNULUS_OK);
        }
        ASSERT_EQ(arrived, Values(count, 10 * round + 1 - rank));
      }
    }
  });
}

// Receives and sends that were started before are before it.
TEST_P(SendrecvTest, KeepsTheOrderOfMessages) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    for (size_t count : {size_t{1}, size_t{3000}, size_t{100000}}) {
      std::vector<int> first(count, -1), second(count, -1);
      annulus_request_t* const received = ReceiveAsync(comm, &first, 1 - rank);
      const std::vector<int> values = Values(count, 1);
      annulus_request_t* const sent = SendAsync(comm, values, 1 - rank);
      ASSERT_EQ(Exchange(comm, Values(count, 2), 1 - rank, &second, 1 - rank), ANNULUS_OK);
      EXPECT_EQ(Finish(sent), ANNULUS_OK);
      EXPECT_EQ(Finish(received), ANNULUS_OK);
      ASSERT_EQ(first, Values(count, 1));
      ASSERT_EQ(second, Values(count, 2));
    }
  });
}

TEST_P(SendrecvTest, WhereOnePartIsRefusedNeitherIsMade) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    const int peer = 1 - rank;
    for (int round = 0; round < 2; ++round) {  // Later messages take other ways than the first.
      std::vector<int> arrived(1);
      const std::vector<int> values = {1};
      const auto refused = [&](int dest, int source, int type) {
        return annulus_sendrecv(comm, values.data(), 1, dest, arrived.data(), 1, source,
                                static_cast<annulus_type_t>(type));
      };
      EXPECT_EQ(refused(2, peer, ANNULUS_INT32), ANNULUS_INVALID_ARGUMENT);
      EXPECT_NE(LastMessage().find("the part sent to dest: peer is 2"), std::string::npos) << LastMessage();
      EXPECT_EQ(refused(peer, 5, ANNULUS_INT32), ANNULUS_INVALID_ARGUMENT);
      EXPECT_NE(LastMessage().find("the part received from source: peer is 5"), std::string::npos) << LastMessage();
      EXPECT_EQ(refused(peer, -1, ANNULUS_INT32), ANNULUS_INVALID_ARGUMENT);
      EXPECT_EQ(refused(rank, peer, ANNULUS_INT32), ANNULUS_INVALID_ARGUMENT);
      EXPECT_EQ(refused(peer, rank, ANNULUS_INT32), ANNULUS_INVALID_ARGUMENT);
      EXPECT_EQ(refused(peer, peer, 99), ANNULUS_INVALID_ARGUMENT);
      EXPECT_EQ(annulus_sendrecv(comm, nullptr, 1, peer, arrived.data(), 1, peer, ANNULUS_INT32),
                ANNULUS_INVALID_ARGUMENT);
      EXPECT_EQ(annulus_sendrecv(comm, values.data(), 1, peer, nullptr, 1, peer, ANNULUS_INT32),
                ANNULUS_INVALID_ARGUMENT);
      EXPECT_EQ(annulus_sendrecv(nullptr, values.data(), 1, peer, arrived.data(), 1, peer, ANNULUS_INT32),
                ANNULUS_INVALID_ARGUMENT);
      ASSERT_EQ(Exchange(comm, {7 + round}, peer, &arrived, peer), ANNULUS_OK);
      EXPECT_EQ(arrived[0], 7 + round);
    }
  });
}

// Small ones would work by the copy that the link makes first.
TEST_P(SendrecvTest, BuffersThatOverlapAreRefused) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    const int peer = 1 - rank;
    for (const size_t count : {size_t{1}, size_t{16384}}) {
      std::vector<int> values(2 * count), arrived(count);
      for (int round = 0; round < 2; ++round) {
        const auto exchange = [&](int* from, size_t sent, int* to, size_t received) {
          return annulus_sendrecv(comm, from, sent, peer, to, received, peer, ANNULUS_INT32);
        };
        EXPECT_EQ(exchange(values.data(), count, values.data(), count), ANNULUS_INVALID_ARGUMENT);
        EXPECT_NE(LastMessage().find("overlap"), std::string::npos) << LastMessage();
        EXPECT_EQ(exchange(values.data(), count + 1, values.data() + count, count), ANNULUS_INVALID_ARGUMENT);
        EXPECT_EQ(exchange(values.data(), count, values.data() + count, count), ANNULUS_OK);
        EXPECT_EQ(exchange(values.data() + count, count, values.data(), count), ANNULUS_OK);
        EXPECT_EQ(exchange(values.data(), 0, values.data(), 0), ANNULUS_OK);
      }
    }
  });
}

// Over other ways: calls by priority, calls that are compared, a limit of memory, no spinning.
TEST_P(SendrecvTest, GoesWithEverySetting) {
  for (int way = 0; way < 4; ++way) {
    SCOPED_TRACE(way);
    ClusterConfig config = Config(3);
    config.priorities = way == 0 ? 1 : 0;
    config.check_calls = way == 1 ? 1 : 0;
    config.memory_bytes = way == 2 ? 200'000'000 : 0;
    config.spin_us = way == 3 ? 0 : -1;
    Cluster(config).Run([](annulus_comm_t* comm, int rank) {
      for (const size_t count : {size_t{2}, size_t{16384}, size_t{300000}}) {
        for (int round = 0; round < 3; ++round) {
          std::vector<int> arrived(count, -1);
          ASSERT_EQ(Exchange(comm, Values(count, rank + round), (rank + 1) % 3, &arrived, (rank + 2) % 3), ANNULUS_OK);
          ASSERT_EQ(arrived, Values(count, (rank + 2) % 3 + round));
        }
      }
    });
  }
}

TEST_P(SendrecvTest, DifferentCountsEndInOneVerdict) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    std::vector<int> arrived(4);
    const std::vector<int> four(4), five(5);
    ASSERT_EQ(Exchange(comm, four, 1 - rank, &arrived, 1 - rank), ANNULUS_OK);
    const annulus_status_t status = Exchange(comm, rank == 0 ? five : four, 1 - rank, &arrived, 1 - rank);
    EXPECT_TRUE(status == ANNULUS_MISMATCH || (rank == 0 && status == ANNULUS_OK)) << annulus_status_string(status);
    annulus_error_t verdict{};
    verdict.struct_bytes = sizeof verdict;
    // The rank that got what it asked for learns of it in its next call.
    if (status == ANNULUS_OK) {
      EXPECT_EQ(annulus_barrier(comm), ANNULUS_MISMATCH);
    }
    EXPECT_EQ(annulus_comm_verdict(comm, &verdict), ANNULUS_OK);
    EXPECT_EQ(verdict.status, ANNULUS_MISMATCH) << verdict.message;
  });
}

TEST_P(SendrecvTest, APeerThatLeavesIsNamed) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    std::vector<int> arrived(1);
    ASSERT_EQ(Exchange(comm, {rank}, 1 - rank, &arrived, 1 - rank), ANNULUS_OK);
    if (rank == 1) return;
    EXPECT_EQ(Exchange(comm, {rank}, 1, &arrived, 1), ANNULUS_PEER_LOST);
    EXPECT_NE(LastMessage().find("rank 1"), std::string::npos) << LastMessage();
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, SendrecvTest, testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
