// Random programs against a model: parts of each are captured into graphs with parallel branches, and launched some
// times among live calls of the same stream; nothing waits on the host.
#include "tests/collectives/api/stream_programs.h"
#include "tests/collectives/graphs/user_graph.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/soak/rounds.h"

namespace annulus::stream_programs {
namespace {

// Captured before anything is done, so that launches of all graphs and live calls follow each other.
void DoRounds(const Program& program, ProgramRun* run, Random* own) {
  const cuda::Stream first = run->streams()[0];
  // What the constructor has filled, in each stream.
  for (size_t i = 1; i < run->streams().size(); ++i) Follow(run->user(), first, run->streams()[i]);
  std::vector<std::unique_ptr<UserGraph>> graphs;
  for (const Program::Round& round : program.rounds) {
    graphs.emplace_back();
    if (!round.is_graph) continue;
    graphs.back() = std::make_unique<UserGraph>(first, [&] {
      for (size_t i = 1; i < run->streams().size(); ++i) Follow(run->user(), run->streams()[i], first);
      run->DoCaptured(round.steps);
      for (size_t i = 1; i < run->streams().size(); ++i) Follow(run->user(), first, run->streams()[i]);
    });
  }
  for (size_t i = 0; i < graphs.size(); ++i) {
    const Program::Round& round = program.rounds[i];
    for (int time = 0; time < round.times; ++time) {
      if (Below(6, own) == 0) run->user().Hold(first);
      round.is_graph ? graphs[i]->Launch(first) : run->DoInOne(round.steps);
      if (Below(3, own) == 0) run->user().LetGo();
    }
  }
  run->user().LetGo();
  ASSERT_TRUE(run->user().Drain(first));
}

TEST(CudaGraphRandomTest, ProgramsOfGraphsDoWhatTheirStepsDoInTurn) {
  LoadDriver();
  const uint64_t rounds = Rounds(30, 4000);
  for (int form = 0; form < 3; ++form) {
    ClusterConfig config;
    config.nranks = form == 0 ? 3 : 2;
    config.transport = form == 2 ? "tcp" : "shm";
    config.timeout_ms = 60'000;
    // Live calls of four kilobytes and more are folds, once the ranks have agreed; over shared memory.
    config.small_bytes = 256;
    config.stream_fold_bytes = 256 * 1024;
    config.stream_exchanges = true;
    Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
      for (uint64_t seed = 1; seed <= rounds / 3 && !testing::Test::HasFailure(); ++seed) {
        SCOPED_TRACE(testing::Message() << "form " << form << ", seed " << seed);
        Random common(seed);
        Random own(100 * seed + static_cast<uint64_t>(rank));
        Program program(config.nranks, &common);
        program.MakeGraphs(&common);
        const Model model(program);
        ProgramRun run(comm, program, rank, &own);
        DoRounds(program, &run, &own);
        run.Compare(model);
      }
    });
  }
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

}  // namespace
}  // namespace annulus::stream_programs
