// Calls for which memory runs out on the calling thread: each is refused with a status, does nothing, and leaves the
// communicator as it was. Every allocation of a call fails once.
//
// Threads: one per rank.
#include <annulus.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>

#include "tests/collectives/harness/calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/transport/allocation_counter.h"

namespace annulus {
namespace {

// The status of this thread's latest failure.
annulus_status_t LatestStatus() {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  return annulus_last_error(&error) == ANNULUS_OK ? error.status : ANNULUS_INTERNAL;
}

// Submits the calls until no allocation fails, waits for them, and returns how many failed.
int SubmitWithoutMemory(annulus_comm_t* comm, const Calls& calls) {
  for (int failed = 0;; ++failed) {
    annulus_request_t* request = nullptr;
    FailAllocation(failed + 1);
    const annulus_status_t status = calls.Submit(comm, &request);
    const bool has_failed = StopFailing();
    if (!has_failed) {
      EXPECT_EQ(status, ANNULUS_OK) << LastMessage(comm);
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(comm);
      EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
      return failed;
    }
    EXPECT_EQ(status, ANNULUS_OUT_OF_MEMORY) << LastMessage(comm);
    EXPECT_EQ(LatestStatus(), ANNULUS_OUT_OF_MEMORY);
    EXPECT_EQ(request, nullptr);
    if (status != ANNULUS_OUT_OF_MEMORY) return failed;
  }
}

ClusterConfig Far() {
  ClusterConfig config;
  config.timeout_ms = kFarTimeoutMs;
  return config;
}

TEST(NoMemoryTest, AGroupThatIsRefusedLeavesNothingQueued) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int rank) {
    annulus_memory_t before{};
    annulus_memory_t after{};
    before.struct_bytes = after.struct_bytes = sizeof before;
    EXPECT_EQ(annulus_comm_memory(comm, &before), ANNULUS_OK);
    std::array<int32_t, 6> x = {1, 2, 3, 4, rank, 0};
    Calls calls;
    for (size_t i = 0; i < 3; ++i) calls.Allreduce(&x[i], &x[i], 1, ANNULUS_INT32, ANNULUS_SUM);
    calls.Rooted(ANNULUS_CALL_BROADCAST, &x[3], &x[3], 1, ANNULUS_INT32, 0).label = "a label that needs memory";
    calls.Rooted(ANNULUS_CALL_SEND, &x[4], nullptr, 1, ANNULUS_INT32, 1 - rank);
    calls.Rooted(ANNULUS_CALL_RECV, nullptr, &x[5], 1, ANNULUS_INT32, 1 - rank).done = [](void*, annulus_status_t) {};
    EXPECT_GT(SubmitWithoutMemory(comm, calls), 10);
    EXPECT_EQ(x, (std::array<int32_t, 6>{2, 4, 6, 4, rank, 1 - rank}));
    EXPECT_EQ(annulus_comm_memory(comm, &after), ANNULUS_OK);
    EXPECT_EQ(after.requests, before.requests) << "a refused group left requests";
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK) << "the ranks count the same calls";
  });
}

TEST(NoMemoryTest, ACallThatIsRefusedLeavesNothingQueued) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int rank) {
    const std::array<size_t, 2> counts = {1, 1};
    std::array<int32_t, 2> x = {rank, rank};
    Calls gather;
    gather.Add(ANNULUS_CALL_ALLGATHERV, &x[static_cast<size_t>(rank)], x.data(), 1, ANNULUS_INT32).recvcounts =
        counts.data();
    EXPECT_GT(SubmitWithoutMemory(comm, gather), 1);
    EXPECT_EQ(x, (std::array<int32_t, 2>{0, 1}));
    Calls message;
    message.Rooted(rank == 0 ? ANNULUS_CALL_SEND : ANNULUS_CALL_RECV, x.data(), x.data(), 1, ANNULUS_INT32, 1 - rank);
    SubmitWithoutMemory(comm, message);
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

TEST(NoMemoryTest, NothingIsThrownOutOfTheLibrary) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int) {
    annulus_counters_t counters{};
    annulus_peer_counters_t peer{};
    annulus_transport_counters_t transport{};
    annulus_memory_t memory{};
    annulus_device_t device{};
    annulus_error_t error{};
    annulus_config_t config;
    void* allocated = nullptr;
    int number = 0;
    const std::function<annulus_status_t()> refused[] = {
        [&] { return annulus_comm_rank(nullptr, &number); },
        [&] { return annulus_barrier(nullptr); },
        [&] { return annulus_allreduce(comm, nullptr, nullptr, 1, ANNULUS_INT32, ANNULUS_SUM); },
        [&] { return annulus_comm_counters(comm, &counters); },
        [&] { return annulus_comm_peer_counters(comm, 99, &peer); },
        [&] { return annulus_comm_transport_counters(comm, -1, &transport); },
        [&] { return annulus_comm_memory(comm, &memory); },
        [&] { return annulus_comm_device(comm, &device); },
        [&] { return annulus_comm_verdict(comm, &error); },
        [&] { return annulus_last_error(&error); },
        [&] { return annulus_config_init(&config, 3, 0); },
        [&] { return annulus_mem_alloc(0, &allocated); },
        [&] { return annulus_request_test(reinterpret_cast<annulus_request_t*>(1)); },
        [&] { return annulus_op_destroy(comm, static_cast<annulus_op_t>(77)); },
    };
    for (const auto& call : refused) {
      bool has_failed = true;
      for (size_t k = 1; has_failed; ++k) {
        FailAllocation(k);
        const annulus_status_t status = call();
        has_failed = StopFailing();
        EXPECT_TRUE(status == ANNULUS_INVALID_ARGUMENT || (has_failed && status == ANNULUS_OUT_OF_MEMORY))
            << "call " << &call - refused << ", allocation " << k << ": " << annulus_status_string(status);
      }
    }
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

}  // namespace
}  // namespace annulus
