// Each launcher's environment as it sets it (recorded from Open MPI 4.1.4, MPICH 4.0.2 and Slurm 22.05; torchrun's and
// horovodrun's as they document it), and what may be wrong with it.
#include "base/launchers.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/collectives/core/fake_environment.h"

namespace annulus {
namespace {

const FakeEnvironment kTorchrun{
    {"RANK", "5"},
    {"WORLD_SIZE", "8"},
    {"LOCAL_RANK", "1"},
    {"MASTER_PORT", "29500"},
    {"LOCAL_WORLD_SIZE", "4"},
    {"MASTER_ADDR", "node01"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
};
const FakeEnvironment kOpenMpi{
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_COMM_WORLD_NODE_RANK", "1"},
    {"PMIX_NAMESPACE", "1931411457"},
    {"PMIX_RANK", "1"},
    {"OMPI_MCA_ess_base_jobid", "1931411457"},
};
const FakeEnvironment kHydra{
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_FD", "8"},
};
const FakeEnvironment kSlurm{
    {"SLURM_PROCID", "9"},
    {"SLURM_NTASKS", "11"},
    {"SLURM_STEP_NUM_TASKS", "11"},
    {"SLURM_LOCALID", "1"},
    {"SLURM_NODEID", "2"},
    {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
    {"SLURM_TASKS_PER_NODE", "8"},
    {"SLURM_STEP_NODELIST", "node[07-09]"},
    {"SLURM_NODELIST", "node[01-09]"},
    {"SLURM_JOB_ID", "77"},
    {"SLURM_STEP_ID", "3"},
    {"SLURM_STEPID", "3"},
};
const FakeEnvironment kSlurmBatchShell{
    {"SLURM_PROCID", "0"},
    {"SLURM_NTASKS", "11"},
    {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "0"},
    {"SLURM_JOB_ID", "77"},
    {"SLURM_TASKS_PER_NODE", "8"},
    {"SLURM_NODELIST", "node[01-09]"},
};
const FakeEnvironment kHorovodrun{
    {"HOROVOD_RANK", "1"},
    {"HOROVOD_SIZE", "2"},
    {"HOROVOD_LOCAL_RANK", "1"},
    {"HOROVOD_LOCAL_SIZE", "2"},
    {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"},
    {"HOROVOD_GLOO_RENDEZVOUS_PORT", "41234"},
};

Options Read(const FakeEnvironment& environment) {
  Options options;
  const Status status = environment.Read(&options);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return options;
}

std::string ReadError(const FakeEnvironment& environment) {
  Options options;
  const Status status = environment.Read(&options);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  return status.message();
}

void ExpectRanks(const Options& options, int rank, int size, int local_rank, int local_size) {
  EXPECT_EQ(options.rank, rank);
  EXPECT_EQ(options.size, size);
  EXPECT_EQ(options.local_rank, local_rank);
  EXPECT_EQ(options.local_size, local_size);
}

std::string Local(const std::string& job) { return "127.0.0.1:" + std::to_string(DerivedPort(job)); }

TEST(Launchers, Torchrun) {
  const Options options = Read(kTorchrun);
  EXPECT_EQ(options.launcher, "torchrun");
  ExpectRanks(options, 5, 8, 1, 4);
  EXPECT_EQ(options.rendezvous, "node01:29501");
}

TEST(Launchers, TorchrunNamesItsRunAndCountsItsRestartsOnOneHost) {
  const FakeEnvironment here =
      kTorchrun.With("LOCAL_WORLD_SIZE", "8").With("TORCHELASTIC_RUN_ID", "B").With("TORCHELASTIC_RESTART_COUNT", "2");
  EXPECT_EQ(Read(here).run_id, "B");
  EXPECT_EQ(Read(here).restart, 2);
  // The agents of several hosts each count for themselves.
  const Options spread = Read(here.With("LOCAL_WORLD_SIZE", "4"));
  EXPECT_EQ(spread.run_id, "B");
  EXPECT_EQ(spread.restart, 0);
  EXPECT_EQ(ReadError(here.With("TORCHELASTIC_RESTART_COUNT", "-1")),
            "TORCHELASTIC_RESTART_COUNT is \"-1\"; allowed: a whole number from 0 to 2147483647");
}

TEST(Launchers, ARunThatMayBeAnothersIsInDoubt) {
  const FakeEnvironment spread = kTorchrun.With("TORCHELASTIC_RUN_ID", "B");
  EXPECT_EQ(Read(kTorchrun.With("TORCHELASTIC_RUN_ID", "none")).run_doubt, "torchrun was given no --rdzv-id");
  EXPECT_EQ(Read(kTorchrun).run_doubt, "torchrun was given no --rdzv-id");
  EXPECT_EQ(Read(spread).run_doubt, "torchrun's agents do not count restarts together");
  EXPECT_EQ(Read(spread.With("TORCHELASTIC_MAX_RESTARTS", "3")).run_doubt,
            "torchrun's agents do not count restarts together");
  EXPECT_EQ(Read(spread.With("TORCHELASTIC_MAX_RESTARTS", "0")).run_doubt, "");
  EXPECT_EQ(Read(spread.With("LOCAL_WORLD_SIZE", "8")).run_doubt, "");
  EXPECT_EQ(Read(kTorchrun.With("ANNULUS_RUN_ID", "mine")).run_doubt, "");
  const FakeEnvironment hosts = kHydra.With("MPI_LOCALNRANKS", "1").With("ANNULUS_RENDEZVOUS", "here:1");
  EXPECT_EQ(Read(hosts).run_doubt, "MPICH names no job on several hosts");
  EXPECT_EQ(Read(kSlurm).run_doubt, "");
  EXPECT_EQ(Read(kOpenMpi).run_doubt, "");
}

TEST(Launchers, OthersNameTheirRunsAsTheyName) {
  EXPECT_EQ(Read(kSlurm).run_id, "Slurm 77.3");
  EXPECT_EQ(Read(kSlurm.With("SLURM_RESTART_COUNT", "1")).restart, 1);
  EXPECT_EQ(Read(kOpenMpi).run_id, "Open MPI 1931411457");
  EXPECT_EQ(Read(kOpenMpi.Without("PMIX_NAMESPACE")).run_id, "Open MPI 1931411457");
  EXPECT_EQ(Read(kHorovodrun).run_id, "horovodrun 41234");
}

TEST(Launchers, RunOfTheUserTakesPrecedence) {
  const Options options =
      Read(kSlurm.With("ANNULUS_RUN_ID", "mine").With("SLURM_RESTART_COUNT", "1").With("ANNULUS_RENDEZVOUS", "here:1"));
  EXPECT_EQ(options.run_id, "mine");
  EXPECT_EQ(options.restart, 0);
}

TEST(Launchers, RunOfAnotherLaunchersRanksIsNotTaken) {
  const FakeEnvironment own = kSlurm.With("ANNULUS_RANK", "0").With("ANNULUS_SIZE", "2");
  EXPECT_EQ(Read(own.With("ANNULUS_RENDEZVOUS", "here:1")).run_id, "");
}

TEST(Launchers, LongRunIdIsShortenedAndStaysItsOwn) {
  const std::string longest(JobRun::kMostBytes, 'x');
  EXPECT_EQ(ShortRunId(longest), longest);
  const std::string left = ShortRunId(longest + "1");
  const std::string right = ShortRunId(longest + "2");
  EXPECT_EQ(left.size(), JobRun::kMostBytes);
  EXPECT_NE(left, right);
  EXPECT_EQ(left.substr(0, 40), longest.substr(0, 40));
}

TEST(Launchers, MasterPortIsLeftToTheFrameworkWithoutAgentStoreToo) {
  EXPECT_EQ(Read(kTorchrun.Without("TORCHELASTIC_USE_AGENT_STORE")).rendezvous, "node01:29501");
  EXPECT_EQ(Read(kTorchrun.With("MASTER_ADDR", "fd00::2")).rendezvous, "[fd00::2]:29501");
}

TEST(Launchers, WrongMasterIsNamed) {
  EXPECT_EQ(ReadError(kTorchrun.With("MASTER_PORT", "65535")),
            "MASTER_PORT is \"65535\"; allowed: a whole number from 1 to 65534");
  EXPECT_EQ(ReadError(kTorchrun.Without("MASTER_PORT")),
            "MASTER_ADDR is set but MASTER_PORT is not; set both or neither");
  EXPECT_EQ(ReadError(kTorchrun.With("MASTER_ADDR", "a b")),
            "MASTER_ADDR is \"a b\"; allowed: a host name or an IP address");
}

TEST(Launchers, OpenMpiOnOneHostRendezvousLocally) {
  const Options options = Read(kOpenMpi);
  EXPECT_EQ(options.launcher, "Open MPI");
  ExpectRanks(options, 1, 2, 1, 2);
  EXPECT_EQ(options.rendezvous, Local("Open MPI 1931411457"));
  EXPECT_EQ(Read(kOpenMpi.Without("PMIX_NAMESPACE")).rendezvous, options.rendezvous);
}

TEST(Launchers, OpenMpiOnSeveralHostsNeedsARendezvous) {
  const FakeEnvironment environment = kOpenMpi.With("OMPI_COMM_WORLD_SIZE", "4");
  const Options options = Read(environment);
  EXPECT_EQ(options.rendezvous, "");
  EXPECT_NE(Validate(options).message().find("Open MPI does not tell"), std::string::npos);
  EXPECT_EQ(Read(environment.With("ANNULUS_RENDEZVOUS", "a:1")).rendezvous, "a:1");
  EXPECT_EQ(Read(environment.With("MASTER_ADDR", "a").With("MASTER_PORT", "1")).rendezvous, "a:2");
}

TEST(Launchers, HydraWithoutItsProxyNeedsARendezvous) {
  const Options options = Read(kHydra);
  EXPECT_EQ(options.launcher, "MPICH Hydra");
  ExpectRanks(options, 1, 2, 1, 2);
  EXPECT_EQ(options.rendezvous, "");
}

// What a process `depth` levels below this one finds as Hydra's rendezvous.
std::string RendezvousBelow(int depth) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NAME, "rank");
    const std::string found = depth > 1 ? RendezvousBelow(depth - 1) : Read(kHydra).rendezvous;
    _exit(write(ends[1], found.data(), found.size()) == static_cast<ssize_t>(found.size()) ? 0 : 1);
  }
  close(ends[1]);
  char text[64];
  const ssize_t bytes = read(ends[0], text, sizeof text);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return {text, bytes > 0 ? static_cast<size_t>(bytes) : 0};
}

TEST(Launchers, HydraOnOneHostTakesItsProxyAsJobName) {
  char own_name[16];
  prctl(PR_GET_NAME, own_name);
  prctl(PR_SET_NAME, "hydra_pmi_proxy");
  const std::string direct = RendezvousBelow(1);
  const std::string nested = RendezvousBelow(2);
  prctl(PR_SET_NAME, own_name);
  EXPECT_TRUE(direct.starts_with("127.0.0.1:")) << direct;
  EXPECT_EQ(nested, direct);
}

TEST(Launchers, SlurmOnSeveralHosts) {
  const Options options = Read(kSlurm);
  EXPECT_EQ(options.launcher, "Slurm");
  ExpectRanks(options, 9, 11, 1, 3);
  EXPECT_EQ(options.rendezvous, "node07:" + std::to_string(DerivedPort("Slurm 77.3")));
  EXPECT_EQ(Read(kSlurm.Without("SLURM_STEP_ID")).rendezvous, options.rendezvous);
}

TEST(Launchers, SlurmStepsGetPortsOfTheirOwn) {
  EXPECT_NE(Read(kSlurm.With("SLURM_STEP_ID", "4")).rendezvous, Read(kSlurm).rendezvous);
}

TEST(Launchers, SlurmOnOneHostRendezvousLocally) {
  const FakeEnvironment environment = kSlurm.With("SLURM_STEP_NUM_TASKS", "2")
                                          .With("SLURM_PROCID", "1")
                                          .With("SLURM_STEP_TASKS_PER_NODE", "2")
                                          .With("SLURM_NODEID", "0");
  ExpectRanks(Read(environment), 1, 2, 1, 2);
  EXPECT_EQ(Read(environment).rendezvous, Local("Slurm 77.3"));
}

TEST(Launchers, SlurmWithoutItsOptionalNames) {
  const Options options =
      Read(kSlurm.Without("SLURM_STEP_TASKS_PER_NODE").With("SLURM_NODEID", "0").Without("SLURM_STEP_NODELIST"));
  EXPECT_EQ(options.local_size, 8);
  EXPECT_TRUE(options.rendezvous.starts_with("node01:"));
  EXPECT_EQ(Read(kSlurm.Without("SLURM_NODEID").Without("SLURM_LOCALID")).local_size, -1);
}

TEST(Launchers, SlurmsBatchShellIsNoRank) {
  const Options options = Read(kSlurmBatchShell);
  EXPECT_EQ(options.launcher, "");
  ExpectRanks(options, -1, -1, -1, -1);
}

TEST(Launchers, BrokenSlurmListsAreNamed) {
  EXPECT_EQ(ReadError(kSlurm.With("SLURM_STEP_TASKS_PER_NODE", "4(x2")),
            "SLURM_STEP_TASKS_PER_NODE is \"4(x2\"; allowed: a list such as "
            "4(x2),3 with an entry for SLURM_NODEID, "
            "which is 2");
  EXPECT_NE(ReadError(kSlurm.With("SLURM_NODEID", "3")), "");
  EXPECT_EQ(ReadError(kSlurm.With("SLURM_STEP_NODELIST", "node[1")),
            "SLURM_STEP_NODELIST is \"node[1\"; allowed: a list such as "
            "node[01-04,7],x");
}

TEST(Launchers, Horovodrun) {
  const Options options = Read(kHorovodrun);
  EXPECT_EQ(options.launcher, "horovodrun");
  ExpectRanks(options, 1, 2, 1, 2);
  EXPECT_EQ(options.rendezvous, Local("horovodrun 41234"));
}

TEST(Launchers, InnermostGoesFirst) {
  EXPECT_EQ(Read(kSlurm.And(kOpenMpi)).launcher, "Open MPI");
  EXPECT_EQ(Read(kSlurmBatchShell.And(kOpenMpi)).launcher, "Open MPI");
  EXPECT_EQ(Read(kSlurm.And(kHydra)).launcher, "MPICH Hydra");
  EXPECT_EQ(Read(kSlurm.And(kOpenMpi).And(kTorchrun)).launcher, "torchrun");
  EXPECT_EQ(Read(kOpenMpi.And(kHorovodrun)).launcher, "horovodrun");
}

TEST(Launchers, SrunThatSpeaksPmiIsSlurm) {
  const FakeEnvironment environment = kSlurm.With("PMI_RANK", "9").With("PMI_SIZE", "11").With("PMI_JOBID", "77.3");
  EXPECT_EQ(Read(environment).launcher, "Slurm");
  EXPECT_EQ(Read(environment).local_size, 3);
}

TEST(Launchers, OwnVariablesGoBeforeAnyLauncher) {
  const Options options =
      Read(kTorchrun.With("ANNULUS_RANK", "0").With("ANNULUS_SIZE", "2").With("ANNULUS_RENDEZVOUS", "b:9"));
  EXPECT_EQ(options.launcher, "the ANNULUS_* variables");
  ExpectRanks(options, 0, 2, -1, -1);
  EXPECT_EQ(options.rendezvous, "b:9");
  EXPECT_EQ(Read(kOpenMpi.With("ANNULUS_LOCAL_RANK", "0")).local_rank, 0);
}

TEST(Launchers, HalfALauncherIsAnError) {
  EXPECT_EQ(ReadError({{"RANK", "0"}}), "RANK is set but WORLD_SIZE is not; set both or neither");
  EXPECT_EQ(ReadError({{"WORLD_SIZE", "2"}}), "WORLD_SIZE is set but RANK is not; set both or neither");
  EXPECT_EQ(ReadError(kOpenMpi.Without("OMPI_COMM_WORLD_RANK")),
            "OMPI_COMM_WORLD_SIZE is set but OMPI_COMM_WORLD_RANK is not; set "
            "both or neither");
  EXPECT_EQ(ReadError(kHydra.Without("PMI_SIZE")), "PMI_RANK is set but PMI_SIZE is not; set both or neither");
  EXPECT_EQ(ReadError(kHorovodrun.Without("HOROVOD_SIZE")),
            "HOROVOD_RANK is set but HOROVOD_SIZE is not; set both or neither");
}

TEST(Launchers, HalfALauncherBesideAWholeOneIsIgnored) {
  EXPECT_EQ(Read(kOpenMpi.With("RANK", "7")).launcher, "Open MPI");
}

TEST(Launchers, WrongRanksAreNamed) {
  EXPECT_EQ(ReadError(kOpenMpi.With("OMPI_COMM_WORLD_RANK", "x")),
            "OMPI_COMM_WORLD_RANK is \"x\"; allowed: a whole number from 0 to 4095");
  EXPECT_EQ(ReadError(kSlurm.With("SLURM_STEP_NUM_TASKS", "0")),
            "SLURM_STEP_NUM_TASKS is \"0\"; allowed: a whole number from 1 to 4096");
  EXPECT_EQ(ReadError(kTorchrun.With("RANK", "8")), "RANK is 8, but WORLD_SIZE is 8; ranks run from 0 to size - 1");
  EXPECT_EQ(ReadError(kTorchrun.With("LOCAL_RANK", "-1")),
            "LOCAL_RANK is \"-1\"; allowed: a whole number from 0 to 4095");
}

TEST(Launchers, OneRankNeedsNoRendezvous) {
  EXPECT_EQ(Read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "nonsense"}}).rendezvous, "");
}

TEST(SlurmTasksAtNode, ReadsRepeats) {
  int64_t tasks = 0;
  const int64_t expected[] = {4, 4, 3, 1, 1};
  for (int node = 0; node < 5; ++node) {
    ASSERT_TRUE(SlurmTasksAtNode("4(x2),3,1(x2)", node, &tasks));
    EXPECT_EQ(tasks, expected[node]);
  }
  for (const char* wrong :
       {"", "x", "4(x2", "4(y2)", "4(x)", "4(x0)", "4(x-1),4", "0", "-1", ",4", "4(x99999999999999999999)", "4 "}) {
    EXPECT_FALSE(SlurmTasksAtNode(wrong, 1, &tasks)) << wrong;
    EXPECT_FALSE(SlurmTasksAtNode(wrong, 0, &tasks)) << wrong;
  }
  EXPECT_FALSE(SlurmTasksAtNode("4(x2)", 2, &tasks));
}

TEST(SlurmFirstHost, ReadsBrackets) {
  const std::pair<const char*, const char*> cases[] = {
      {"node[01-04,7],x", "node01"},    {"x,node[01-04]", "x"}, {"n[3]", "n3"},
      {"r[1-2]n[07,9]-ib", "r1n07-ib"}, {"vm", "vm"},
  };
  std::string host;
  for (const auto& [list, first] : cases) {
    ASSERT_TRUE(SlurmFirstHost(list, &host)) << list;
    EXPECT_EQ(host, first);
  }
  for (const char* wrong : {"", ",", "node[", "node[1", "node[]", "node]", "a b", "a:1"}) {
    EXPECT_FALSE(SlurmFirstHost(wrong, &host)) << wrong;
  }
}

TEST(DerivedPort, StaysBelowEphemeralPorts) {
  for (int i = 0; i < 10'000; ++i) {
    const int port = DerivedPort("job " + std::to_string(i));
    ASSERT_GE(port, 20'000);
    ASSERT_LT(port, 32'000);
  }
  EXPECT_EQ(DerivedPort("a"), DerivedPort("a"));
}

}  // namespace
}  // namespace annulus
