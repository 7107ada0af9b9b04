// Messages with tags and receives from any rank through the C API, over real links.

#include <annulus.h>
#include <gtest/gtest.h>

#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/comm/message_calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

class MessageTagsTest : public MessagesTest {};

annulus_call_t SendCall(const std::vector<int>& values, int peer, int tag) {
  annulus_call_t call{};
  call.struct_bytes = sizeof call;
  call.kind = ANNULUS_CALL_SEND;
  call.type = ANNULUS_INT32;
  call.sendbuf = values.data();
  call.count = values.size();
  call.root = peer;
  call.tag = tag;
  return call;
}

annulus_call_t ReceiveCall(std::vector<int>* values, int peer, int tag, annulus_received_t* received = nullptr) {
  annulus_call_t call{};
  call.struct_bytes = sizeof call;
  call.kind = ANNULUS_CALL_RECV;
  call.type = ANNULUS_INT32;
  call.recvbuf = values->data();
  call.count = values->size();
  call.root = peer;
  call.tag = tag;
  call.received = received;
  if (received != nullptr) *received = {sizeof *received, -7, -7, 0};
  return call;
}

annulus_request_t* Submit(annulus_comm_t* comm, const annulus_call_t& call) {
  annulus_request_t* request = nullptr;
  EXPECT_EQ(annulus_submit(comm, &call, 1, &request), ANNULUS_OK) << LastMessage();
  return request;
}

// Sizes on both sides of what is sent at once, in one slice, before the receive is known, and only when asked for.
constexpr size_t kCounts[] = {0, 1, 2000, 16385, 100000, 700001, kSanitized ? 300001 : 3000001};

TEST_P(MessageTagsTest, TwoTagsMayBeReceivedInTheOtherOrder) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    for (const size_t first : kCounts) {
      for (const size_t second : kCounts) {
        const std::vector<int> zero = Values(first, 5);
        const std::vector<int> nine = Values(second, 9);
        if (rank == 0) {
          annulus_request_t* const one = Submit(comm, SendCall(zero, 1, 0));
          annulus_request_t* const other = Submit(comm, SendCall(nine, 1, 9));
          ASSERT_EQ(Finish(one), ANNULUS_OK);
          ASSERT_EQ(Finish(other), ANNULUS_OK);
          continue;
        }
        std::vector<int> arrived(second, -1);
        annulus_received_t received;
        annulus_call_t call = ReceiveCall(&arrived, 0, 9, &received);
        ASSERT_EQ(annulus_run(comm, &call), ANNULUS_OK) << LastMessage(comm);
        ASSERT_EQ(arrived, nine);
        ASSERT_EQ(received.source, 0);
        ASSERT_EQ(received.tag, 9);
        ASSERT_EQ(received.count, second);
        arrived.assign(first, -1);
        ASSERT_EQ(Receive(comm, &arrived, 0), ANNULUS_OK) << LastMessage(comm);
        ASSERT_EQ(arrived, zero);
      }
    }
  });
}

// Small messages take the short way once the pair has had one, if they have come already.
TEST_P(MessageTagsTest, EveryReceiveTellsWhatItGotHoweverTheMessageCame) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    for (int i = 0; i < 200; ++i) {
      const size_t count = 1 + i % 40;
      std::vector<int> values = Values(count, i);
      if (rank == 0) {
        ASSERT_EQ(Send(comm, values, 1), ANNULUS_OK) << LastMessage(comm);
      }
      if (i % 10 != 0) {
        ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
      }
      if (rank == 0) continue;
      annulus_received_t received;
      const annulus_call_t call = ReceiveCall(&values, 0, 0, &received);
      if (i % 3 == 2) {
        ASSERT_EQ(Finish(Submit(comm, call)), ANNULUS_OK);
      } else {
        ASSERT_EQ(annulus_run(comm, &call), ANNULUS_OK) << LastMessage(comm);
      }
      ASSERT_EQ(received.struct_bytes, sizeof received);
      ASSERT_EQ(received.source, 0);
      ASSERT_EQ(received.tag, 0);
      ASSERT_EQ(received.count, count) << "message " << i;
    }
  });
}

TEST_P(MessageTagsTest, ManyMiddlingMessagesOfATagDoNotHoldUpASmallOne) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    constexpr size_t kCount = 1 << 18;  // A MiB.
    constexpr int kMessages = 12;
    std::vector<std::vector<int>> buffers(kMessages);
    std::vector<annulus_request_t*> requests;
    std::vector<int> small(1, 7);
    for (int i = 0; i < kMessages && rank == 0; ++i) {
      buffers[i] = Values(kCount, i);
      requests.push_back(Submit(comm, SendCall(buffers[i], 1, 1)));
    }
    if (rank == 0) {
      requests.push_back(Submit(comm, SendCall(small, 1, 2)));
    } else {
      annulus_call_t call = ReceiveCall(&small, 0, 2);
      call.timeout_ms = 20000;
      ASSERT_EQ(annulus_run(comm, &call), ANNULUS_OK) << LastMessage(comm);
      for (std::vector<int>& buffer : buffers) {
        buffer.assign(kCount, -1);
        requests.push_back(Submit(comm, ReceiveCall(&buffer, 0, 1)));
      }
    }
    for (annulus_request_t* const request : requests) ASSERT_EQ(Finish(request), ANNULUS_OK);
    for (int i = 0; i < kMessages; ++i) ASSERT_EQ(buffers[i], Values(kCount, i));
  });
}

TEST_P(MessageTagsTest, MessagesOfOneTagKeepTheirOrderAmongOthers) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    constexpr int kMessages = 60;
    constexpr int kTags = 4;
    std::vector<std::vector<int>> buffers(kMessages);
    std::vector<annulus_request_t*> requests;
    for (int i = 0; i < kMessages; ++i) {
      // The receiver goes through the tags one after the other, the sender through all at once.
      const int number = rank == 0 ? i : i / (kMessages / kTags) + i % (kMessages / kTags) * kTags;
      const size_t count = kCounts[number % 4];
      buffers[i] = rank == 0 ? Values(count, number) : std::vector<int>(count, -1);
      requests.push_back(Submit(
          comm, rank == 0 ? SendCall(buffers[i], 1, number % kTags) : ReceiveCall(&buffers[i], 0, number % kTags)));
    }
    for (annulus_request_t* const request : requests) ASSERT_EQ(Finish(request), ANNULUS_OK);
    for (int i = 0; i < kMessages && rank == 1; ++i) {
      const int number = i / (kMessages / kTags) + i % (kMessages / kTags) * kTags;
      ASSERT_EQ(buffers[i], Values(kCounts[number % 4], number)) << "message " << number;
    }
  });
}

TEST_P(MessageTagsTest, LargeMessagesWithTagsPassEachOther) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    constexpr size_t kLarge = 1500001;
    constexpr int kEach = 4;
    std::vector<std::vector<int>> arrived(kEach, std::vector<int>(kLarge));
    std::vector<std::vector<int>> sent;
    for (int tag = 0; tag < kEach; ++tag) sent.push_back(Values(kLarge, rank * 100 + tag));
    std::vector<annulus_request_t*> requests;
    for (int tag = 0; tag < kEach; ++tag) requests.push_back(Submit(comm, SendCall(sent[tag], 1 - rank, tag)));
    for (int tag = kEach; tag-- > 0;) requests.push_back(Submit(comm, ReceiveCall(&arrived[tag], 1 - rank, tag)));
    for (annulus_request_t* const request : requests) ASSERT_EQ(Finish(request), ANNULUS_OK);
    for (int tag = 0; tag < kEach; ++tag) ASSERT_EQ(arrived[tag], Values(kLarge, (1 - rank) * 100 + tag));
  });
}

TEST_P(MessageTagsTest, AReceiveFromAnyRankTellsWhoseMessageItGot) {
  Cluster(Config(4)).Run([](annulus_comm_t* comm, int rank) {
    constexpr int kMessages = 50;
    for (const size_t count : {size_t{1}, size_t{5000}, size_t{700001}}) {
      const int messages = count > 100000 ? 3 : kMessages;
      if (rank != 0) {
        for (int i = 0; i < messages; ++i) {
          const std::vector<int> values = Values(count, rank * 1000 + i);
          annulus_call_t call = SendCall(values, 0, rank + i);
          ASSERT_EQ(annulus_run(comm, &call), ANNULUS_OK) << LastMessage(comm);
        }
        ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
        continue;
      }
      std::vector<int> seen(4);
      for (int i = 0; i < 3 * messages; ++i) {
        std::vector<int> arrived(count, -1);
        annulus_received_t received;
        annulus_call_t call = ReceiveCall(&arrived, ANNULUS_ANY_PEER, ANNULUS_ANY_TAG, &received);
        ASSERT_EQ(annulus_run(comm, &call), ANNULUS_OK) << LastMessage(comm);
        ASSERT_TRUE(received.source >= 1 && received.source <= 3);
        const int number = seen[received.source]++;
        ASSERT_EQ(received.tag, received.source + number);
        ASSERT_EQ(arrived, Values(count, received.source * 1000 + number));
      }
      ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    }
  });
}

TEST_P(MessageTagsTest, AMessageThatNobodyAskedForIsLeftToALaterReceive) {
  Cluster(Config(3)).Run([](annulus_comm_t* comm, int rank) {
    std::vector<int> values = Values(3, rank);
    if (rank != 0) {
      annulus_call_t call = SendCall(values, 0, rank);
      ASSERT_EQ(annulus_run(comm, &call), ANNULUS_OK);
      ASSERT_EQ(Send(comm, values, 0), ANNULUS_OK);
      ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
      return;
    }
    for (const int peer : {2, 1}) {  // With the tag 0, each behind another message.
      std::vector<int> arrived(3, -1);
      ASSERT_EQ(Receive(comm, &arrived, peer), ANNULUS_OK) << LastMessage(comm);
      ASSERT_EQ(arrived, Values(3, peer));
    }
    for (int i = 0; i < 2; ++i) {
      std::vector<int> arrived(3, -1);
      annulus_received_t received;
      annulus_call_t call = ReceiveCall(&arrived, ANNULUS_ANY_PEER, ANNULUS_ANY_TAG, &received);
      ASSERT_EQ(annulus_run(comm, &call), ANNULUS_OK) << LastMessage(comm);
      ASSERT_EQ(received.tag, received.source);
      ASSERT_EQ(arrived, Values(3, received.source));
    }
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

TEST_P(MessageTagsTest, GroupsHaveTagsToo) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    std::vector<int> out[2] = {Values(10, rank), Values(20, rank + 50)};
    std::vector<int> in[2] = {std::vector<int>(10), std::vector<int>(20)};
    annulus_received_t received[2];
    const annulus_call_t calls[] = {SendCall(out[0], 1 - rank, 3), SendCall(out[1], 1 - rank, 4),
                                    ReceiveCall(&in[1], ANNULUS_ANY_PEER, 4, &received[1]),
                                    ReceiveCall(&in[0], 1 - rank, 3, &received[0])};
    annulus_request_t* request = nullptr;
    ASSERT_EQ(annulus_submit(comm, calls, 4, &request), ANNULUS_OK) << LastMessage(comm);
    ASSERT_EQ(Finish(request), ANNULUS_OK);
    EXPECT_EQ(in[0], Values(10, 1 - rank));
    EXPECT_EQ(in[1], Values(20, 1 - rank + 50));
    EXPECT_EQ(received[0].tag, 3);
    EXPECT_EQ(received[1].tag, 4);
    EXPECT_EQ(received[1].source, 1 - rank);
    EXPECT_EQ(received[1].count, 20u);
  });
}

TEST_P(MessageTagsTest, DifferentCountsAreAMismatchWhicheverWayTheMessageCame) {
  for (const size_t count : {size_t{4}, size_t{1000000}}) {
    for (const bool is_held : {false, true}) {
      Cluster(Config(2)).Run([=](annulus_comm_t* comm, int rank) {
        std::vector<int> values(count + 1);
        std::vector<int> other(1);
        annulus_status_t status = ANNULUS_OK;
        if (rank == 1) {
          annulus_request_t* const large = Submit(comm, SendCall(values, 0, 2));
          ASSERT_EQ(Send(comm, other, 0), ANNULUS_OK);
          status = Finish(large);
        } else {
          if (is_held) {
            ASSERT_EQ(Receive(comm, &other, 1), ANNULUS_OK);
          }
          values.pop_back();
          annulus_call_t call = ReceiveCall(&values, 1, ANNULUS_ANY_TAG);
          status = annulus_run(comm, &call);
        }
        if (status == ANNULUS_OK) status = annulus_barrier(comm);
        EXPECT_EQ(status, ANNULUS_MISMATCH);
        const std::string text = "message #1 from rank 1 has " + std::to_string(count + 1) +
                                 " of int32, its receive asks for " + std::to_string(count) + " of int32";
        EXPECT_NE(LastMessage(comm).find(text), std::string::npos) << LastMessage(comm);
      });
    }
  }
}

TEST_P(MessageTagsTest, AReceiveThatGetsNothingEndsAtItsDeadline) {
  for (const int peer : {1, ANNULUS_ANY_PEER}) {
    Cluster(Config(2)).Run([peer](annulus_comm_t* comm, int rank) {
      std::vector<int> values(3);
      annulus_status_t status = ANNULUS_OK;
      if (rank == 0) {
        annulus_call_t call = ReceiveCall(&values, peer, 8);
        call.timeout_ms = 300;
        status = annulus_run(comm, &call);
      } else {
        ASSERT_EQ(Send(comm, values, 0), ANNULUS_OK);
        status = annulus_barrier(comm);
      }
      EXPECT_EQ(status, ANNULUS_TIMEOUT);
      const char* const text = peer == 1 ? "rank 1 did not send a message with tag 8 before its deadline"
                                         : "no rank sent a message with tag 8 before the deadline";
      EXPECT_NE(LastMessage(comm).find(text), std::string::npos) << LastMessage(comm);
    });
  }
}

TEST_P(MessageTagsTest, AReceiveFromAnyRankOutlivesOneThatLeavesButNotTheLast) {
  std::latch left(1);
  Cluster(Config(3)).Run([&left](annulus_comm_t* comm, int rank) {
    if (rank == 2) {
      ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
      return;
    }
    std::vector<int> values(3, rank);
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    if (rank == 1) return left.wait();
    annulus_call_t call = ReceiveCall(&values, ANNULUS_ANY_PEER, 0);
    annulus_request_t* const request = Submit(comm, call);
    EXPECT_EQ(annulus_request_wait(request, 50), ANNULUS_IN_PROGRESS);
    left.count_down();
    EXPECT_EQ(Finish(request), ANNULUS_PEER_LOST);
  });
}

TEST_P(MessageTagsTest, TwoThreadsOfARankUseTagsOfTheirOwn) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    const auto exchange = [comm, rank](int tag) {
      for (int i = 0; i < 300; ++i) {
        std::vector<int> arrived(1 + i % 700, -1);
        const std::vector<int> values = Values(arrived.size(), tag * 1000 + i);
        annulus_call_t receive = ReceiveCall(&arrived, 1 - rank, tag);
        annulus_request_t* const request = Submit(comm, receive);
        annulus_call_t send = SendCall(values, 1 - rank, tag);
        ASSERT_EQ(annulus_run(comm, &send), ANNULUS_OK) << LastMessage(comm);
        ASSERT_EQ(Finish(request), ANNULUS_OK);
        ASSERT_EQ(arrived, values);
      }
    };
    std::thread other([&] { exchange(1); });
    exchange(0);
    other.join();
  });
}

INSTANTIATE_TEST_SUITE_P(Links, MessageTagsTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

TEST(MessageTagArgumentsTest, WrongTagsPeersAndResultsAreRefusedAndNamed) {
  Cluster(ClusterConfig()).Run([](annulus_comm_t* comm, int rank) {
    std::vector<int> value(1);
    annulus_call_t call = SendCall(value, 1 - rank, -1);
    EXPECT_EQ(annulus_run(comm, &call), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(LastMessage(comm), "tag is -1; allowed: 0 or more");
    call = ReceiveCall(&value, 1 - rank, -2);
    EXPECT_EQ(annulus_run(comm, &call), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(LastMessage(comm), "tag is -2; allowed: -1 or more");
    call = SendCall(value, ANNULUS_ANY_PEER, 0);
    EXPECT_EQ(annulus_run(comm, &call), ANNULUS_INVALID_ARGUMENT);
    annulus_received_t received{};
    call = ReceiveCall(&value, 1 - rank, 0);
    call.received = &received;
    EXPECT_EQ(annulus_run(comm, &call), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(LastMessage(comm), "struct_bytes is 0; set it to sizeof(annulus_received_t)");
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

}  // namespace
}  // namespace annulus
