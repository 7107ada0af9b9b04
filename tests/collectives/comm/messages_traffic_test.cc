// Messages of all sizes and forms mixed: each arrives whole and in its place, whichever way it takes.

#include <annulus.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "tests/collectives/comm/message_calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

class MessagesTrafficTest : public MessagesTest {};

// One message of random traffic. Each end goes through all messages in the same order, and waits for asynchronous ones
// after the last, so that no two wait for each other.
struct Letter {
  int from = 0;
  int to = 0;
  size_t count = 0;
  bool send_blocks = false;
  bool receive_blocks = false;
  bool sum_follows = false;
};

std::vector<Letter> RandomLetters(uint32_t seed, int nranks) {
  std::mt19937 random(seed);
  const auto below = [&random](uint32_t end) { return static_cast<int>(random() % end); };
  // Short ones are sent at once, others in slices; both ways meet in one order.
  const size_t counts[] = {0, 1, 2, 255, 1024, 8191, 8192, 8193, 20000, 70000};
  std::vector<Letter> letters(300);
  for (Letter& letter : letters) {
    letter.from = below(static_cast<uint32_t>(nranks));
    letter.to = (letter.from + 1 + below(static_cast<uint32_t>(nranks) - 1)) % nranks;
    letter.count = counts[below(below(4) == 0 ? 10 : 5)];
    letter.send_blocks = below(2) == 0;
    letter.receive_blocks = below(3) != 0;
    letter.sum_follows = below(4) == 0;
  }
  return letters;
}

void Exchange(annulus_comm_t* comm, int rank, const std::vector<Letter>& letters) {
  std::vector<std::vector<int>> buffers(letters.size());
  std::vector<annulus_request_t*> requests;
  for (size_t i = 0; i < letters.size(); ++i) {
    const Letter& letter = letters[i];
    const int seed = static_cast<int>(i) * 1000;
    std::vector<int>& buffer = buffers[i];
    if (rank == letter.from) {
      buffer = Values(letter.count, seed);
      if (letter.send_blocks && letter.receive_blocks) {
        ASSERT_EQ(Send(comm, buffer, letter.to), ANNULUS_OK);
      } else {
        requests.push_back(SendAsync(comm, buffer, letter.to));
      }
    } else if (rank == letter.to) {
      buffer.resize(letter.count, -1);
      if (letter.receive_blocks) {
        ASSERT_EQ(Receive(comm, &buffer, letter.from), ANNULUS_OK);
        ASSERT_EQ(buffer, Values(letter.count, seed)) << "message " << i;
      } else {
        requests.push_back(ReceiveAsync(comm, &buffer, letter.from));
      }
    }
    int sum = 0;
    if (letter.sum_follows) {
      ASSERT_EQ(Sum(comm, rank, &sum), ANNULUS_OK);
    }
  }
  for (annulus_request_t* request : requests) ASSERT_EQ(Finish(request), ANNULUS_OK);
  for (size_t i = 0; i < letters.size(); ++i) {
    if (rank == letters[i].to) {
      ASSERT_EQ(buffers[i], Values(letters[i].count, static_cast<int>(i) * 1000)) << "message " << i;
    }
  }
}

TEST_P(MessagesTrafficTest, RandomTrafficKeepsItsOrder) {
  for (const int nranks : {2, 3}) {
    Cluster(Config(nranks)).Run([nranks](annulus_comm_t* comm, int rank) {
      for (uint32_t seed = 0; seed < (kSanitized ? 3 : 10) && !testing::Test::HasFailure(); ++seed) {
        SCOPED_TRACE(seed);
        Exchange(comm, rank, RandomLetters(seed, nranks));
      }
    });
  }
}

// Two threads of each rank, so that messages that move at once meet those that another thread drives.
TEST_P(MessagesTrafficTest, ThreadsThatSendAndReceiveAtOnceKeepTheOrderOfEachDirection) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    constexpr int kMessages = 2000;
    std::thread sender([&] {
      for (int i = 0; i < kMessages; ++i) {
        ASSERT_EQ(annulus_send(comm, &i, 1, ANNULUS_INT32, 1 - rank), ANNULUS_OK);
      }
    });
    for (int i = 0; i < kMessages; ++i) {
      int arrived = -1;
      ASSERT_EQ(annulus_recv(comm, &arrived, 1, ANNULUS_INT32, 1 - rank), ANNULUS_OK);
      ASSERT_EQ(arrived, i);
    }
    sender.join();
    annulus_counters_t counters{};
    counters.struct_bytes = sizeof counters;
    ASSERT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_OK);
    EXPECT_EQ(counters.messages, 2u * kMessages);
  });
}

// Rank 0's large message to rank 2 must move although rank 0 never waits for it while it exchanges small ones with
// rank 1.
TEST_P(MessagesTrafficTest, SmallMessagesDoNotHoldUpALargeOne) {
  ClusterConfig config = Config(3);
  config.timeout_ms = 20'000;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    constexpr size_t kLarge = kSanitized ? 1'000'000 : 3'000'000;
    const std::vector<int> values = Values(kLarge, 1);
    std::vector<int> arrived(kLarge);
    std::vector<int> over(1, 0);
    if (rank == 2) {
      ASSERT_EQ(Receive(comm, &arrived, 0), ANNULUS_OK);
      EXPECT_EQ(arrived, values);
      ASSERT_EQ(Send(comm, {1}, 1), ANNULUS_OK);
      return;
    }
    annulus_request_t* const large = rank == 0 ? SendAsync(comm, values, 2) : nullptr;
    annulus_request_t* const arrival = rank == 1 ? ReceiveAsync(comm, &over, 2) : nullptr;
    for (std::vector<int> answer = {0}; answer[0] == 0;) {
      annulus_request_t* const receive = ReceiveAsync(comm, &answer, 1 - rank);
      const bool is_over = rank == 1 && annulus_request_test(arrival) == ANNULUS_OK;
      ASSERT_EQ(Finish(SendAsync(comm, {is_over ? 1 : 0}, 1 - rank)), ANNULUS_OK);
      ASSERT_EQ(Finish(receive), ANNULUS_OK);
      if (is_over) break;
    }
    EXPECT_EQ(Finish(rank == 0 ? large : arrival), ANNULUS_OK);
  });
}

// Over a socket, a message that is sent at once fills it in the end, and goes on as one that was posted.
TEST_P(MessagesTrafficTest, MessagesThatTheLinkHasNoRoomForFollowInTheirOrder) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    constexpr int kMessages = kSanitized ? 700 : 1500;
    constexpr size_t kCount = 3000;
    std::vector<std::vector<int>> sent(kMessages);
    std::vector<annulus_request_t*> requests;
    for (int i = 0; rank == 0 && i < kMessages; ++i) {
      sent[i] = Values(kCount, i);
      requests.push_back(SendAsync(comm, sent[i], 1));
    }
    int sum = 0;
    ASSERT_EQ(Sum(comm, rank, &sum), ANNULUS_OK);
    for (annulus_request_t* const request : requests) ASSERT_EQ(Finish(request), ANNULUS_OK);
    // The same with blocking sends, which wait for the other rank.
    for (int i = 0; i < 2 * kMessages; ++i) {
      if (rank == 0 && i < kMessages) {
        ASSERT_EQ(Send(comm, sent[i], 1), ANNULUS_OK);
      } else if (rank == 1) {
        std::vector<int> arrived(kCount, -1);
        ASSERT_EQ(Receive(comm, &arrived, 0), ANNULUS_OK);
        ASSERT_EQ(arrived, Values(kCount, i % kMessages)) << "message " << i;
      }
    }
  });
}

// Both ranks exchange messages in groups, whose requests end with the later of two.
TEST_P(MessagesTrafficTest, SmallMessagesGoInGroupsToo) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    constexpr int kRounds = 500;
    for (int i = 0; i < kRounds; ++i) {
      int outgoing[2] = {i, -i};
      int arrived[2] = {-1, -1};
      annulus_call_t calls[4]{};
      for (int k = 0; k < 4; ++k) {
        calls[k].struct_bytes = sizeof calls[k];
        calls[k].kind = k % 2 == 0 ? ANNULUS_CALL_RECV : ANNULUS_CALL_SEND;
        calls[k].recvbuf = k % 2 == 0 ? &arrived[k / 2] : nullptr;
        calls[k].sendbuf = k % 2 == 0 ? nullptr : &outgoing[k / 2];
        calls[k].count = 1;
        calls[k].type = ANNULUS_INT32;
        calls[k].root = 1 - rank;
      }
      annulus_request_t* request = nullptr;
      ASSERT_EQ(annulus_submit(comm, calls, i % 2 == 0 ? 4 : 2, &request), ANNULUS_OK);
      if (i % 3 == 0) {
        while (annulus_request_test(request) == ANNULUS_IN_PROGRESS) std::this_thread::yield();
      }
      ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
      ASSERT_EQ(arrived[0], i);
      ASSERT_EQ(arrived[1], i % 2 == 0 ? -i : -1);
      ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
    }
    annulus_counters_t counters{};
    counters.struct_bytes = sizeof counters;
    ASSERT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_OK);
    EXPECT_EQ(counters.messages, 3u * kRounds);
    EXPECT_EQ(counters.messages_failed, 0u);
  });
}

// A receive of another size than the message's is a mismatch also where it is looked for at once.
TEST_P(MessagesTrafficTest, AStartedReceiveOfAnotherSizeIsAMismatch) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    int sum = 0;
    for (int i = 0; i < 3; ++i) {
      std::vector<int> values(2, i);
      annulus_request_t* const receive = rank == 1 ? ReceiveAsync(comm, &values, 0) : nullptr;
      ASSERT_EQ(rank == 0 ? Send(comm, values, 1) : Finish(receive), ANNULUS_OK);
    }
    ASSERT_EQ(Sum(comm, rank, &sum), ANNULUS_OK);
    std::vector<int> values(rank == 0 ? 2 : 3, rank);
    if (rank == 0) {
      EXPECT_EQ(Send(comm, values, 1), ANNULUS_OK);
      EXPECT_EQ(Sum(comm, rank, &sum), ANNULUS_MISMATCH);
    } else {
      EXPECT_EQ(Finish(ReceiveAsync(comm, &values, 0)), ANNULUS_MISMATCH);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Links, MessagesTrafficTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
