// Random programs of streams against a model that does one step after the other: fills, copies and calls of every kind
// in several streams, with results that go into later calls, on two or three ranks; nothing waits on the host.
#include "tests/collectives/api/stream_programs.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/soak/rounds.h"

namespace annulus::stream_programs {
namespace {

TEST(CudaStreamRandomTest, ProgramsOfStreamsDoWhatTheirStepsDoInTurn) {
  LoadDriver();
  const uint64_t rounds = Rounds(60, 10000);
  for (int form = 0; form < 3; ++form) {
    ClusterConfig config;
    config.nranks = form == 0 ? 3 : 2;
    config.transport = form == 2 ? "tcp" : "shm";
    config.timeout_ms = 60'000;
    // Calls of four kilobytes and more are folds, once the ranks have agreed; over shared memory.
    config.small_bytes = 256;
    config.stream_fold_bytes = 256 * 1024;
    config.stream_exchanges = true;
    Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
      for (uint64_t seed = 1; seed <= rounds / 3 && !testing::Test::HasFailure(); ++seed) {
        SCOPED_TRACE(testing::Message() << "form " << form << ", seed " << seed);
        Random common(seed);
        Random own(100 * seed + static_cast<uint64_t>(rank));
        const Program program(config.nranks, &common);
        const Model model(program);
        ProgramRun run(comm, program, rank, &own);
        run.DoAll();
        run.Compare(model);
      }
    });
  }
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

}  // namespace
}  // namespace annulus::stream_programs
