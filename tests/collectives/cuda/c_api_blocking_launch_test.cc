// Folds in streams where whoever launches a kernel waits for it, as with CUDA_LAUNCH_BLOCKING and some profilers: the
// ranks must know of the call by then, since one of them opens the gate that the kernel waits behind. On the stand-in
// for the driver.
#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/api/stream_folds.h"

namespace annulus {
namespace {

TEST(BlockingLaunchTest, FoldsOfOneAndOfSeveralPieces) {
  if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  LoadDriver({.devices = 2, .launches_block = true});
  ClusterConfig config = FoldingConfig(2);
  config.timeout_ms = 20'000;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const cuda::Stream stream = user.NewStream();
    Agree(comm, &user, stream);
    for (const annulus_kind_t kind : {ANNULUS_CALL_ALLREDUCE, ANNULUS_CALL_REDUCE_SCATTER, ANNULUS_CALL_REDUCE}) {
      for (const size_t count : {size_t{5'000}, size_t{50'000}})
        Compare(comm, {count, ANNULUS_FLOAT32, ANNULUS_SUM, Where::kDevice, 0, kind, 2}, rank, &user, stream);
    }
  });
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

}  // namespace
}  // namespace annulus
