// Functions of the user's: what they may do, when their contexts are released, and what their failures do.

#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/reduce/operations.h"
#include "tests/collectives/harness/cluster.h"

namespace annulus {
namespace {

struct Caller {
  annulus_comm_t* comm = nullptr;
  annulus_status_t status = ANNULUS_OK;
  std::string message;
  annulus_status_t destroyed = ANNULUS_OK;
  std::string why_not_destroyed;
};

int32_t CallBarrier(const void* left, const void*, void* out, size_t count, annulus_type_t type, void* context) {
  auto* caller = static_cast<Caller*>(context);
  caller->status = annulus_barrier(caller->comm);
  caller->message = LastMessage();
  caller->destroyed = annulus_comm_destroy(caller->comm);
  caller->why_not_destroyed = LastMessage();
  std::memmove(out, left, count * annulus_type_bytes(type));
  return 0;
}

TEST(OperationsLifeTest, AFunctionThatUsesItsCommunicatorIsRefusedAndNothingHangs) {
  Cluster(ClusterConfig{}).Run([](annulus_comm_t* comm, int) {
    for (bool async : {false, true}) {
      Caller caller;
      caller.comm = comm;
      annulus_op_t op{};
      ASSERT_EQ(annulus_op_create(comm, CallBarrier, &caller, nullptr, &op), ANNULUS_OK);
      int32_t x[2] = {1, 2};
      if (async) {
        annulus_request_t* request = nullptr;
        ASSERT_EQ(annulus_allreduce_async(comm, x, x, 2, ANNULUS_INT32, op, &request), ANNULUS_OK);
        EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
        annulus_request_free(request);
      } else {
        EXPECT_EQ(annulus_allreduce(comm, x, x, 2, ANNULUS_INT32, op), ANNULUS_OK);
      }
      EXPECT_EQ(caller.status, ANNULUS_INVALID_ARGUMENT);
      EXPECT_NE(caller.message.find("reduction function"), std::string::npos) << caller.message;
      EXPECT_EQ(caller.destroyed, ANNULUS_INVALID_ARGUMENT);
      EXPECT_EQ(caller.why_not_destroyed, "a reduction function cannot destroy the communicator that called it");
    }
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

int32_t KeepLeft(const void* left, const void*, void* out, size_t count, annulus_type_t type, void*);

// The thread sanitizer fails this where the two are not ordered.
TEST(OperationsLifeTest, WhatTheLastUserDidIsSeenByWhoFindsTheOperationUnused) {
  Operations operations;
  int written = 0;
  int number = 0;
  ASSERT_TRUE(operations.Create(KeepLeft, &written, nullptr, &number).ok());
  Operations::Operation used;
  ASSERT_TRUE(operations.Find(number, &used).ok());
  ASSERT_TRUE(operations.Destroy(number).ok());
  EXPECT_TRUE(operations.TakeUnused().empty());
  std::thread user([&written, keep = std::move(used.keep)]() mutable {
    written = 1;
    keep.reset();
  });
  // Kept until after the look: to free it would order the two as well.
  auto unused = operations.TakeUnused();
  for (; unused.empty(); unused = operations.TakeUnused()) std::this_thread::yield();
  EXPECT_EQ(written, 1);
  EXPECT_FALSE(operations.has_retired());
  user.join();
}

// Counts how often it was released.
void CountRelease(void* context) { ++*static_cast<std::atomic<int>*>(context); }

int32_t KeepLeft(const void* left, const void*, void* out, size_t count, annulus_type_t type, void*) {
  std::memmove(out, left, count * annulus_type_bytes(type));
  return 0;
}

TEST(OperationsLifeTest, AContextIsReleasedOnceWhenNothingUsesItAnyMore) {
  std::atomic<int> kept{0};
  Cluster(ClusterConfig{}).Run([&kept](annulus_comm_t* comm, int rank) {
    std::atomic<int> released{0};
    annulus_op_t op{};
    ASSERT_EQ(annulus_op_create(comm, KeepLeft, &released, CountRelease, &op), ANNULUS_OK);
    int32_t sum[2] = {1, 2};
    EXPECT_EQ(annulus_allreduce(comm, sum, sum, 2, ANNULUS_INT32, op), ANNULUS_OK);
    EXPECT_EQ(released, 0);
    ASSERT_EQ(annulus_op_destroy(comm, op), ANNULUS_OK);
    EXPECT_EQ(released, 1) << "nothing used it";

    // Queued work uses it until it ends, which rank 1 decides.
    std::atomic<int> late{0};
    ASSERT_EQ(annulus_op_create(comm, KeepLeft, &late, CountRelease, &op), ANNULUS_OK);
    int32_t x = 1;
    annulus_request_t* request = nullptr;
    if (rank == 0) {
      ASSERT_EQ(annulus_allreduce_async(comm, &x, &x, 1, ANNULUS_INT32, op, &request), ANNULUS_OK);
      ASSERT_EQ(annulus_op_destroy(comm, op), ANNULUS_OK);
      EXPECT_EQ(late, 0);
      EXPECT_EQ(annulus_send(comm, &x, 1, ANNULUS_INT32, 1), ANNULUS_OK);
    } else {
      EXPECT_EQ(annulus_recv(comm, &x, 1, ANNULUS_INT32, 0), ANNULUS_OK);
      ASSERT_EQ(annulus_allreduce_async(comm, &x, &x, 1, ANNULUS_INT32, op, &request), ANNULUS_OK);
      ASSERT_EQ(annulus_op_destroy(comm, op), ANNULUS_OK);
    }
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    // The thread that did the work releases it soon; the next change of operations does so at the latest.
    ASSERT_EQ(annulus_op_create_premul_sum(comm, 2, &op), ANNULUS_OK);
    while (late == 0) std::this_thread::yield();
    EXPECT_EQ(late, 1);
    ASSERT_EQ(annulus_op_create(comm, KeepLeft, &kept, CountRelease, &op), ANNULUS_OK);
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
  EXPECT_EQ(kept, 2) << "once by each rank, in annulus_comm_destroy";
}

// Destroyed while a blocking call uses it: this call's end is the last use.
struct Destroys {
  annulus_comm_t* comm = nullptr;
  annulus_op_t op{};
  std::atomic<int> released{0};
  std::atomic<int> early{0};
  std::once_flag once;
};

int32_t DestroyOnce(const void* left, const void* right, void* out, size_t count, annulus_type_t type, void* context) {
  auto* const self = static_cast<Destroys*>(context);
  std::call_once(self->once, [self] {
    std::thread([self] { EXPECT_EQ(annulus_op_destroy(self->comm, self->op), ANNULUS_OK); }).join();
    self->early += self->released;
  });
  return KeepLeft(left, right, out, count, type, nullptr);
}

TEST(OperationsLifeTest, ABlockingCallThatIsTheLastUseReleases) {
  Cluster(ClusterConfig{}).Run([](annulus_comm_t* comm, int rank) {
    Destroys context;
    context.comm = comm;
    const auto release = [](void* of) { ++static_cast<Destroys*>(of)->released; };
    ASSERT_EQ(annulus_op_create(comm, DestroyOnce, &context, release, &context.op), ANNULUS_OK);
    std::vector<int32_t> x(100'000, rank + 1);
    EXPECT_EQ(annulus_allreduce(comm, x.data(), x.data(), x.size(), ANNULUS_INT32, context.op), ANNULUS_OK);
    EXPECT_EQ(context.early, 0) << "still in use";
    EXPECT_EQ(context.released, 1);
  });
}

int32_t FailOnRank(const void* left, const void* right, void* out, size_t count, annulus_type_t type, void* context) {
  return context == nullptr ? KeepLeft(left, right, out, count, type, nullptr) : 42;
}

TEST(OperationsLifeTest, AFunctionThatFailsEndsTheCommunicatorOnAllRanks) {
  for (const size_t count : {2, 100'000}) {
    Cluster(ClusterConfig{}).Run([count](annulus_comm_t* comm, int rank) {
      annulus_op_t op{};
      ASSERT_EQ(annulus_op_create(comm, FailOnRank, rank == 1 ? comm : nullptr, nullptr, &op), ANNULUS_OK);
      std::vector<int32_t> x(count, rank + 1);
      annulus_status_t status = annulus_allreduce(comm, x.data(), x.data(), count, ANNULUS_INT32, op);
      if (status == ANNULUS_OK && rank == 0) {
        // It was done before rank 1 found out: then with nothing from rank 1 but its own elements.
        const auto is_right = [](int32_t element) { return element == 1 || element == 2; };
        EXPECT_TRUE(std::all_of(x.begin(), x.end(), is_right)) << "what was not combined was taken for a result";
        status = annulus_barrier(comm);
      }
      EXPECT_EQ(status, ANNULUS_ABORTED);
      const std::string why = "the reduction function of rank 1 failed: it returned 42";
      EXPECT_NE(LastMessage(comm).find(why), std::string::npos) << LastMessage(comm);
    });
  }
}

}  // namespace
}  // namespace annulus
