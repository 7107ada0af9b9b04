// The data path of calls and messages, from the C API to the links: nothing on it allocates, also where a rank sleeps.

#include <annulus.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/engine/driver.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/transport/allocation_counter.h"

namespace annulus {
namespace {

class DataPathTest : public testing::TestWithParam<const char*> {};

TEST_P(DataPathTest, WarmBlockingCallsAllocateNothing) {
  ClusterConfig config;
  config.nranks = 2;
  config.spin_us = 1000000;
  config.transport = GetParam();
  Cluster(config).Run([](annulus_comm_t* comm, int) {
    std::vector<float> in(300000, 1);
    std::vector<float> out(900000);
    const auto calls = [&] {
      for (size_t count : {size_t{2}, size_t{1000}, size_t{300000}}) {  // One hop, one slice, many.
        ASSERT_EQ(annulus_allreduce(comm, in.data(), out.data(), count, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
        ASSERT_EQ(annulus_broadcast(comm, in.data(), out.data(), count, ANNULUS_FLOAT32, 1), ANNULUS_OK);
        ASSERT_EQ(annulus_allgather(comm, in.data(), out.data(), count, ANNULUS_FLOAT32), ANNULUS_OK);
        ASSERT_EQ(annulus_gather(comm, in.data(), out.data(), count, ANNULUS_FLOAT32, 0), ANNULUS_OK);
      }
      ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    };
    for (int i = 0; i < 3; ++i) calls();
    const size_t before = AllocationsOfThisThread();
    for (int i = 0; i < 20; ++i) calls();
    EXPECT_EQ(AllocationsOfThisThread() - before, 0u);
  });
}

TEST(MessagesAtOnceTest, TakeNoRequestAndAllocateNothing) {
  ClusterConfig config;
  config.nranks = 2;
  config.transport = "shm";
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    std::vector<float> values(1000, 1), arrived(1000);
    const auto pass = [&] {
      for (size_t count : {size_t{0}, size_t{2}, size_t{1000}}) {
        if (rank == 0) {
          ASSERT_EQ(annulus_send(comm, values.data(), count, ANNULUS_FLOAT32, 1), ANNULUS_OK);
        }
        ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);  // It has arrived.
        if (rank == 1) {
          ASSERT_EQ(annulus_recv(comm, values.data(), count, ANNULUS_FLOAT32, 0), ANNULUS_OK);
        }
        ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
        ASSERT_EQ(
            annulus_sendrecv(comm, values.data(), count, 1 - rank, arrived.data(), count, 1 - rank, ANNULUS_FLOAT32),
            ANNULUS_OK);
      }
    };
    for (int i = 0; i < 3; ++i) pass();
    const size_t before = AllocationsOfThisThread();
    for (int i = 0; i < 20; ++i) pass();
    EXPECT_EQ(AllocationsOfThisThread() - before, 0u);
  });
}

TEST(MessagesAtOnceTest, OfAGroupAllocateNothing) {
  ClusterConfig config;
  config.nranks = 2;
  config.transport = "shm";
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    std::vector<float> values(1000, 1), arrived(1000);
    const auto pass = [&] {
      for (size_t count : {size_t{2}, size_t{1000}}) {
        annulus_call_t calls[2] = {};
        for (annulus_call_t& call : calls) {
          call.struct_bytes = sizeof call;
          call.type = ANNULUS_FLOAT32;
          call.root = 1 - rank;
          call.count = count;
        }
        calls[0].kind = ANNULUS_CALL_SEND;
        calls[0].sendbuf = values.data();
        calls[1].kind = ANNULUS_CALL_RECV;
        calls[1].recvbuf = arrived.data();
        annulus_request_t* request = nullptr;
        ASSERT_EQ(annulus_submit(comm, calls, 2, &request), ANNULUS_OK);
        ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);  // Both have left.
        ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
        ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
      }
    };
    for (int i = 0; i < 3; ++i) pass();
    const size_t before = AllocationsOfThisThread();
    for (int i = 0; i < 20; ++i) pass();
    EXPECT_EQ(AllocationsOfThisThread() - before, 0u);
  });
}

// Calls of one thread, rank 0's, which sleeps in each until rank 1 makes the same.
class SleepingForms {
 public:
  explicit SleepingForms(annulus_comm_t* comm) : comm_(comm), in_(kCount, 1), out_(2 * kCount) {}

  static constexpr int kForms = 5;
  void Make(int form, int rank) {
    annulus_request_t* request = nullptr;
    switch (form) {
      case 0:
        return ExpectOk(annulus_allreduce(comm_, in_.data(), out_.data(), kCount, ANNULUS_FLOAT32, ANNULUS_SUM));
      case 1:
        ExpectOk(
            annulus_allreduce_async(comm_, in_.data(), out_.data(), kCount, ANNULUS_FLOAT32, ANNULUS_SUM, &request));
        break;
      case 2:
        ExpectOk(annulus_allgatherv_async(comm_, in_.data(), kCount, out_.data(), counts_, nullptr, ANNULUS_FLOAT32,
                                          &request));
        break;
      case 3:  // Rank 1 sends.
        return ExpectOk(rank == 0 ? annulus_recv(comm_, out_.data(), kCount, ANNULUS_FLOAT32, 1)
                                  : annulus_send(comm_, in_.data(), kCount, ANNULUS_FLOAT32, 0));
      default:
        return ExpectOk(
            annulus_sendrecv(comm_, in_.data(), kCount, 1 - rank, out_.data(), kCount, 1 - rank, ANNULUS_FLOAT32));
    }
    ExpectOk(annulus_request_wait(request, -1));
    ExpectOk(annulus_request_free(request));
  }

 private:
  static constexpr size_t kCount = 1000;

  static void ExpectOk(annulus_status_t status) { EXPECT_EQ(status, ANNULUS_OK); }

  annulus_comm_t* const comm_;
  std::vector<float> in_;
  std::vector<float> out_;
  const size_t counts_[2] = {kCount, kCount};
};

TEST_P(DataPathTest, WarmCallsThatSleepAllocateNothing) {
  ClusterConfig config;
  config.nranks = 2;
  config.spin_us = 0;
  config.transport = GetParam();
  std::array<Sleeper, 8 * SleepingForms::kForms> sleepers;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    SleepingForms forms(comm);
    for (int i = 0; i < 3 * SleepingForms::kForms; ++i) forms.Make(i % SleepingForms::kForms, rank);
    for (size_t i = 0; i < sleepers.size(); ++i) {
      Sleeper& sleeper = sleepers[i];
      const int form = static_cast<int>(i) % SleepingForms::kForms;
      if (rank != 0) {
        ASSERT_TRUE(sleeper.WaitUntilAsleep());
        forms.Make(form, rank);
        continue;
      }
      const size_t before = AllocationsOfThisThread();
      const Nanoseconds begin = Now();
      sleeper.AboutToBlock();
      forms.Make(form, rank);
      // After a longer wait the ranks ask each other what is wrong.
      if (Now() - begin < Driver::kFirstDoubt) {
        EXPECT_EQ(AllocationsOfThisThread() - before, 0u) << "form " << form;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Links, DataPathTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
