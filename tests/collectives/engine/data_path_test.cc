// The data path of a blocking call, from the C API to the links: nothing on it allocates while ranks need not sleep.

#include <annulus.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/collectives/harness/cluster.h"
#include "tests/transport/allocation_counter.h"

namespace annulus {
namespace {

class DataPathTest : public testing::TestWithParam<const char*> {};

TEST_P(DataPathTest, WarmBlockingCallsAllocateNothing) {
  ClusterConfig config;
  config.nranks = 2;
  config.spin_us = 1000000;  // Going to sleep registers with the event loop, which may allocate.
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

INSTANTIATE_TEST_SUITE_P(Links, DataPathTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
