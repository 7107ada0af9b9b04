// What a program learns of a failure: whom it concerns, which call it was, and why.
#include <annulus.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstdint>
#include <string>

#include "tests/collectives/harness/calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

ClusterConfig Far() {
  ClusterConfig config;
  config.timeout_ms = kFarTimeoutMs;
  return config;
}

TEST(ErrorsTest, ARefusalConcernsTheCallAndAVerdictTheCommunicator) {
  std::barrier all_are_through(2);
  Cluster(Far()).Run([&all_are_through](annulus_comm_t* comm, int rank) {
    annulus_error_t error{};
    error.struct_bytes = sizeof error;
    Calls calls;
    annulus_call_t& call = calls.Allreduce(nullptr, nullptr, 1, ANNULUS_INT32, ANNULUS_SUM);
    call.label = "layer 7";
    EXPECT_EQ(annulus_run(comm, &call), ANNULUS_INVALID_ARGUMENT);
    ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
    EXPECT_EQ(error.status, ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(error.scope, ANNULUS_SCOPE_CALL);
    EXPECT_EQ(error.rank, rank);
    EXPECT_STREQ(error.collective, "allreduce");
    EXPECT_STREQ(error.label, "layer 7");
    EXPECT_STREQ(error.message, "sendbuf is null");
    EXPECT_STRNE(error.advice, "");
    ASSERT_EQ(annulus_comm_verdict(comm, &error), ANNULUS_OK);
    EXPECT_EQ(error.status, ANNULUS_OK);
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
    all_are_through.arrive_and_wait();  // An abort would end a barrier that a rank is still in.

    if (rank == 1) annulus_comm_abort(comm, "the loss is not a number");
    int32_t x = 0;
    calls = Calls();
    calls.Allreduce(&x, &x, 1, ANNULUS_INT32, ANNULUS_SUM).label = "layer 8";
    EXPECT_EQ(annulus_run(comm, &calls.back()), ANNULUS_ABORTED);
    ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
    EXPECT_EQ(error.scope, ANNULUS_SCOPE_COMMUNICATOR);
    EXPECT_EQ(error.rank, 1);
    EXPECT_STREQ(error.label, "layer 8");
    EXPECT_STREQ(error.message, "rank 1 aborted the communicator: the loss is not a number");
    ASSERT_EQ(annulus_comm_verdict(comm, &error), ANNULUS_OK);
    EXPECT_EQ(error.status, ANNULUS_ABORTED);
    EXPECT_STREQ(error.message, "rank 1 aborted the communicator: the loss is not a number");
    annulus_request_t* request = nullptr;
    EXPECT_EQ(annulus_barrier_async(nullptr, &request), ANNULUS_INVALID_ARGUMENT);
    ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
    EXPECT_EQ(error.scope, ANNULUS_SCOPE_CALL);
  });
}

TEST(ErrorsTest, WhereThereIsNoCommunicatorTheAdviceSpeaksOfNone) {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  annulus_config_t config;
  annulus_comm_t* comm = nullptr;
  EXPECT_EQ(annulus_config_init(&config, 3, 0), ANNULUS_INVALID_ARGUMENT);
  ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
  EXPECT_STREQ(error.advice, "Correct the call; it did nothing.");
  ASSERT_EQ(annulus_config_init(&config, sizeof config, 0), ANNULUS_OK);
  config.rank = config.size = 2;
  EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_INVALID_ARGUMENT);
  ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
  EXPECT_STREQ(error.advice, "Correct the call; it did nothing.");
}

TEST(ErrorsTest, EveryRefusalHasTheKindAndTheLabelOfItsCall) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int) {
    annulus_error_t error{};
    error.struct_bytes = sizeof error;
    int32_t x = 0;
    Calls calls;
    calls.Allreduce(&x, &x, 1, ANNULUS_INT32, ANNULUS_SUM).label = "layer 1";
    calls.Rooted(ANNULUS_CALL_BROADCAST, &x, &x, 1, ANNULUS_INT32, 0).label = "layer 2";
    const auto expect = [&](annulus_status_t status, annulus_status_t expected) {
      EXPECT_EQ(status, expected);
      ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
      EXPECT_EQ(error.scope, ANNULUS_SCOPE_CALL);
      EXPECT_STREQ(error.collective, "broadcast");
      EXPECT_STREQ(error.label, "layer 2");
    };
    calls.back().wire = 2;
    expect(annulus_run(comm, &calls.back()), ANNULUS_UNSUPPORTED);
    expect(annulus_submit(comm, &calls.back(), 1, nullptr), ANNULUS_UNSUPPORTED);
    expect(calls.Submit(comm, nullptr), ANNULUS_UNSUPPORTED);
    calls.back().wire = 0;
    calls.back().root = 7;
    expect(calls.Submit(comm, nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_submit(comm, &calls.back(), SIZE_MAX, nullptr), ANNULUS_INVALID_ARGUMENT);
    // One that fails itself leaves the error that was asked for.
    expect(calls.Submit(comm, nullptr), ANNULUS_INVALID_ARGUMENT);
    annulus_error_t broken{};
    EXPECT_EQ(annulus_last_error(&broken), ANNULUS_INVALID_ARGUMENT);
    expect(error.status, ANNULUS_INVALID_ARGUMENT);
  });
}

TEST(ErrorsTest, AGroupThatFailsHasTheLabelOfAFailedCallAndAnEndedCommunicatorRefusesWithItsVerdict) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int rank) {
    annulus_error_t error{};
    error.struct_bytes = sizeof error;
    int32_t x[2] = {0, 0};
    Calls calls;
    for (int32_t& each : x) calls.Rooted(ANNULUS_CALL_RECV, nullptr, &each, 1, ANNULUS_INT32, 1 - rank).label = "halo";
    annulus_request_t* request = nullptr;
    ASSERT_EQ(calls.Submit(comm, &request), ANNULUS_OK);
    annulus_barrier(comm);  // Neither aborts before both have submitted.
    annulus_comm_abort(comm, "enough");
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_ABORTED);
    ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
    EXPECT_STREQ(error.label, "halo");
    calls.back().wire = 2;
    EXPECT_EQ(annulus_run(comm, &calls.back()), ANNULUS_ABORTED);
    ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
    EXPECT_EQ(error.scope, ANNULUS_SCOPE_COMMUNICATOR);
  });
}

TEST(ErrorsTest, ALongReasonIsCutAtACharacterAndAllRanksGetTheSame) {
  std::string messages[2];
  Cluster(Far()).Run([&](annulus_comm_t* comm, int rank) {
    std::string reason = "x";
    for (int i = 0; i < 1000; ++i) reason += "\xc3\xa9";
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    if (rank == 1) annulus_comm_abort(comm, reason.c_str());
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_ABORTED);
    messages[rank] = LastMessage();
  });
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_GT(messages[0].size(), 890u);
  EXPECT_EQ(static_cast<unsigned char>(messages[0].back()), 0xa9) << "half a character";
}

TEST(ErrorsTest, AFailedCreateLeavesMoreThanText) {
  annulus_config_t config;
  ASSERT_EQ(annulus_config_init(&config, sizeof config, 0), ANNULUS_OK);
  config.rank = 3;
  config.size = 2;
  annulus_comm_t* comm = reinterpret_cast<annulus_comm_t*>(&config);
  EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_INVALID_ARGUMENT);
  EXPECT_EQ(comm, nullptr);
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
  EXPECT_EQ(error.status, ANNULUS_INVALID_ARGUMENT);
  EXPECT_EQ(error.scope, ANNULUS_SCOPE_CALL);
  EXPECT_NE(std::string(error.message).find("rank"), std::string::npos) << error.message;
}

TEST(ErrorsTest, WithoutADriverACommunicatorSaysWhyItHasNoDevice) {
  Cluster(ClusterConfig()).Run([](annulus_comm_t* comm, int) {
    annulus_device_t device{};
    EXPECT_EQ(annulus_comm_device(comm, nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_comm_device(nullptr, &device), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_comm_device(comm, &device), ANNULUS_INVALID_ARGUMENT) << "no struct_bytes";
    device.struct_bytes = sizeof device;
    ASSERT_EQ(annulus_comm_device(comm, &device), ANNULUS_OK);
    if (device.driver != 0) GTEST_SKIP() << "this machine loads a CUDA driver into tests";
    EXPECT_EQ(device.path, ANNULUS_PATH_NONE);
    EXPECT_EQ(device.number, -1);
    EXPECT_EQ(device.capability, 0);
    EXPECT_STREQ(device.name, "");
    EXPECT_NE(std::string(device.why).find("libcuda.so.1"), std::string::npos) << device.why;
  });
}

}  // namespace
}  // namespace annulus
