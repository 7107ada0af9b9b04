#include "tests/collectives/comm/failure_scene.h"

namespace annulus {

void ExpectRefusals(annulus_comm_t* comm, annulus_status_t verdict) {
  const Numbers in(kCount);
  Numbers out(kCount);
  EXPECT_EQ(Sum(comm, in, &out), verdict);
  EXPECT_EQ(annulus_barrier(comm), verdict);
  EXPECT_EQ(annulus_broadcast(comm, nullptr, nullptr, 1, ANNULUS_INT32, 77), verdict) << "whatever the arguments";
  annulus_request_t* request = nullptr;
  EXPECT_EQ(SumAsync(comm, in, &out, &request), verdict);
  EXPECT_EQ(annulus_barrier_async(comm, &request), verdict);
  EXPECT_EQ(request, nullptr);
}

void CallOnce(annulus_comm_t* comm, int rank, int nranks, Tally* called) {
  Numbers out(kCount);
  ASSERT_EQ(Sum(comm, Contribution(rank, kCount, 0), &out), ANNULUS_OK) << LastError(comm).message;
  ASSERT_EQ(out, SumOfAll(nranks, kCount, 0));
  called->Add();
  ASSERT_TRUE(called->WaitFor(nranks));
}

void ExpectAborted(const ErrorCopy& error, int aborter) {
  EXPECT_EQ(error.status, ANNULUS_ABORTED);
  EXPECT_EQ(error.rank, aborter);
  EXPECT_EQ(error.peer, -1);
  EXPECT_EQ(error.os_errno, 0);
  EXPECT_NE(error.message.find("rank " + std::to_string(aborter)), std::string::npos) << error.message;
  EXPECT_NE(error.advice, "");
}

void ExpectNamesTheCall(const ErrorCopy& error) {
  EXPECT_EQ(error.sequence, kFailedSequence);
  EXPECT_EQ(error.collective, "allreduce");
}

void ExpectNamesNoCall(const ErrorCopy& error) {
  EXPECT_EQ(error.sequence, 0u);
  EXPECT_EQ(error.collective, "");
}

void ExpectNamesTheCallOrNone(const ErrorCopy& error) {
  return error.sequence == 0 ? ExpectNamesNoCall(error) : ExpectNamesTheCall(error);
}

std::string SceneName(const testing::TestParamInfo<Scene>& info) {
  const Scene& s = info.param;
  return s.transport + std::to_string(s.nranks) + "_culprit" + std::to_string(s.culprit) + "_absent" +
         std::to_string(s.absent);
}

ClusterConfig ConfigOf(const Scene& scene) {
  ClusterConfig config;
  config.transport = scene.transport;
  config.nranks = scene.nranks;
  config.timeout_ms = kFarTimeoutMs;
  return config;
}

}  // namespace annulus
