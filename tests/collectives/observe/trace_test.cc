// ANNULUS_TRACE: what communicators write, read back and compared with what their schedules say.
#include <annulus.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/harness/calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/collectives/observe/trace_reader.h"

namespace annulus {
namespace {

class TraceTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/trace_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    for (char& c : folder_) c = c == '#' ? '_' : c;
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(std::filesystem::create_directories(folder_));
  }

  ClusterConfig Config(int nranks) const {
    ClusterConfig config;
    config.nranks = nranks;
    config.transport = GetParam();
    config.trace = folder_ + "/%r.json";
    return config;
  }
  std::string Path(int rank) const { return folder_ + "/" + std::to_string(rank) + ".json"; }

  std::string folder_;
};

TEST_P(TraceTest, HasEverySliceOfTheRing) {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 3 * 50'000;  // Chunks of several slices.
  Cluster(Config(kRanks)).Run([](annulus_comm_t* comm, int rank) {
    Numbers out(kCount);
    ASSERT_EQ(Sum(comm, Contribution(rank, kCount, 1), &out), ANNULUS_OK);
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    ASSERT_EQ(Sum(comm, Contribution(rank, kCount, 2), &out), ANNULUS_OK);
  });
  const uint64_t chunk_bytes = kCount / kRanks * 8;
  for (int rank = 0; rank < kRanks; ++rank) {
    SCOPED_TRACE(rank);
    const Json trace = ReadTrace(Path(rank));
    EXPECT_EQ(trace["otherData"]["dropped_events"], 0);
    EXPECT_EQ(trace["otherData"]["size"], kRanks);
    for (const uint64_t sequence : {1, 3}) {
      EXPECT_EQ(BytesOf(trace, "received", sequence), 2 * (kRanks - 1) * chunk_bytes);
      EXPECT_EQ(BytesOf(trace, "sent", sequence), 2 * (kRanks - 1) * chunk_bytes);
      EXPECT_EQ(BytesOf(trace, "reduced", sequence), (kRanks - 1) * chunk_bytes);
    }
    const std::vector<Json> calls = OfCategory(trace, "collective");
    ASSERT_EQ(calls.size(), 3u);
    EXPECT_EQ(calls[0]["name"], "allreduce");
    EXPECT_EQ(calls[1]["name"], "barrier");
    EXPECT_EQ(calls[0]["args"]["count"], kCount);
    EXPECT_EQ(calls[0]["args"]["bytes"], kCount * 8);
    EXPECT_EQ(calls[0]["args"]["type"], "int64");
    EXPECT_EQ(calls[2]["args"]["sequence"], 3);
    EXPECT_EQ(calls[2]["args"]["ok"], true);
    for (const Json& call : calls) EXPECT_EQ(call["pid"], rank + 1);
    EXPECT_EQ(Named(trace, "link to rank " + std::to_string((rank + 1) % kRanks)).size(), 2u);  // And for messages.
    for (const Json& link : OfCategory(trace, "link")) EXPECT_EQ(link["args"]["transport"], GetParam());
    for (const Json& wait : OfCategory(trace, "wait")) {
      EXPECT_NE(wait["args"].value("peer", -1), rank);
    }
    EXPECT_TRUE(OfCategory(trace, "verdict").empty());
  }
}

TEST_P(TraceTest, CallsWithLabelsAreNamedByThem) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    int32_t x[3] = {rank, rank, rank};
    Calls calls;
    calls.Allreduce(&x[0], &x[0], 1, ANNULUS_INT32, ANNULUS_SUM).label = "layer \"7\"";
    ASSERT_EQ(annulus_run(comm, &calls.back()), ANNULUS_OK);
    ASSERT_EQ(calls.Do(comm), ANNULUS_OK);
    ASSERT_EQ(annulus_allreduce(comm, x, x, 1, ANNULUS_INT32, ANNULUS_SUM), ANNULUS_OK) << "without one";
    Calls message;
    message.Rooted(rank == 0 ? ANNULUS_CALL_SEND : ANNULUS_CALL_RECV, x, x, 1, ANNULUS_INT32, 1 - rank).label = "halo";
    ASSERT_EQ(message.Do(comm), ANNULUS_OK);
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
  const Json trace = ReadTrace(Path(0));
  const std::vector<Json> calls = OfCategory(trace, "collective");
  ASSERT_EQ(calls.size(), 4u);
  for (int i : {0, 1}) {
    EXPECT_EQ(calls[i]["name"], "allreduce (layer \"7\")");
    EXPECT_EQ(calls[i]["args"]["label"], "layer \"7\"");
  }
  EXPECT_EQ(calls[2]["name"], "allreduce");
  EXPECT_FALSE(calls[2]["args"].contains("label"));
  const std::vector<Json> messages = OfCategory(trace, "message");
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0]["name"], "send to rank 1 (halo)");
  EXPECT_EQ(messages[1]["name"], messages[0]["name"]) << "its end";
}

TEST_P(TraceTest, HasMessagesAndTheWaitForALatePeer) {
  constexpr size_t kCount = 40'000;
  std::atomic<annulus_comm_t*> waiting{nullptr};
  Tally done;
  Cluster(Config(2)).Run([&](annulus_comm_t* comm, int rank) {
    std::vector<float> data(kCount, 1.0F);
    if (rank == 0) {
      waiting.store(comm);
      ASSERT_EQ(annulus_recv(comm, data.data(), kCount, ANNULUS_FLOAT32, 1), ANNULUS_OK);
    } else {
      const Deadline deadline = DeadlineAfter(kPatience);
      annulus_counters_t counters{};
      counters.struct_bytes = sizeof counters;
      while (Now() < deadline && (waiting.load() == nullptr || counters.sleeps == 0)) {
        if (waiting.load() != nullptr) annulus_comm_counters(waiting.load(), &counters);
      }
      ASSERT_EQ(annulus_send(comm, data.data(), kCount, ANNULUS_FLOAT32, 0), ANNULUS_OK);
    }
    done.Add();
    ASSERT_TRUE(done.WaitFor(2));
  });
  const Json receiver = ReadTrace(Path(0));
  const std::vector<Json> messages = Named(receiver, "receive from rank 1");
  ASSERT_EQ(messages.size(), 2u);  // Its begin and its end.
  EXPECT_EQ(messages[0]["args"]["bytes"], kCount * 4);
  EXPECT_EQ(BytesOf(receiver, "received", 1), kCount * 4);
  EXPECT_FALSE(Named(receiver, "wait for rank 1").empty());
  EXPECT_FALSE(Named(receiver, "sleep").empty());
  const Json sender = ReadTrace(Path(1));
  EXPECT_EQ(Named(sender, "send to rank 0").size(), 2u);
  EXPECT_EQ(BytesOf(sender, "sent", 1), kCount * 4);
}

TEST_P(TraceTest, AFailureLeavesAReadableFileBeforeTheEnd) {
  Cluster(Config(2)).Run([this](annulus_comm_t* comm, int rank) {
    Numbers out(8);
    ASSERT_EQ(Sum(comm, Contribution(rank, 8, 1), &out), ANNULUS_OK);
    const annulus_status_t status = rank == 0 ? annulus_barrier(comm) : Sum(comm, Contribution(rank, 8, 1), &out);
    EXPECT_EQ(status, ANNULUS_MISMATCH);
    const Json trace = ReadTrace(Path(rank));
    const std::vector<Json> calls = OfCategory(trace, "collective");
    ASSERT_EQ(calls.size(), 2u);
    EXPECT_EQ(calls[0]["args"]["ok"], true);
    EXPECT_EQ(calls[1]["args"]["ok"], false);
    const std::vector<Json> verdicts = Named(trace, "mismatch");
    ASSERT_EQ(verdicts.size(), 1u);
    EXPECT_EQ(verdicts[0]["args"]["message"], LastError(comm).message);
  });
}

TEST_P(TraceTest, CommunicatorsThatAreSplitWriteFilesUnderTheFirstJobsRank) {
  Cluster(Config(3)).Run([](annulus_comm_t* comm, int rank) {
    annulus_comm_t* part = nullptr;
    ASSERT_EQ(annulus_comm_split(comm, rank == 1 ? 1 : 0, 0, &part), ANNULUS_OK);
    EXPECT_EQ(annulus_barrier(part), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_destroy(part), ANNULUS_OK);
  });
  const Json trace = ReadTrace(Path(2) + ".2");
  EXPECT_EQ(trace["otherData"]["rank"], 1);
  EXPECT_EQ(trace["otherData"]["size"], 2);
  ASSERT_EQ(Named(trace, "barrier").size(), 1u);
  EXPECT_EQ(Named(trace, "barrier")[0]["pid"], 3);
  EXPECT_TRUE(std::filesystem::exists(Path(0) + ".2"));
  EXPECT_TRUE(std::filesystem::exists(Path(1) + ".2"));
}

TEST_P(TraceTest, WithoutTheSettingThereIsNoFile) {
  std::filesystem::current_path(folder_);
  ClusterConfig config = Config(2);
  config.trace.clear();
  Cluster(config).Run([](annulus_comm_t* comm, int rank) { ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK); });
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  std::filesystem::current_path("/");
}

INSTANTIATE_TEST_SUITE_P(Transports, TraceTest, testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

UserConfig Alone(const std::string& trace) {
  UserConfig config;
  config.rank = 0;
  config.size = 1;
  config.Set("trace", trace);
  return config;
}

// As a program that returns from main without annulus_comm_destroy.
[[noreturn]] void ExitWithoutDestroy(const std::string& trace) {
  const UserConfig config = Alone(trace);
  annulus_comm_t* comm = nullptr;
  if (annulus_comm_create(&config, &comm) != ANNULUS_OK || annulus_barrier(comm) != ANNULUS_OK) std::exit(1);
  static annulus_comm_t* kept = nullptr;  // Reachable: not a leak.
  kept = comm;
  std::exit(kept == nullptr ? 1 : 0);
}

TEST(TraceAtExit, IsWrittenThoughNobodyDestroyedTheCommunicator) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // In a process of its own, with its own end.
  const std::string path = testing::TempDir() + "/exit";
  std::filesystem::remove(path + ".0");
  EXPECT_EXIT(ExitWithoutDestroy(path), testing::ExitedWithCode(0), "");
  EXPECT_EQ(Named(ReadTrace(path + ".0"), "barrier").size(), 1u);
}

// A trace helps to understand a job; it must never be what ends one.
TEST(TraceSetting, ATraceThatCannotBeWrittenIsLoggedAndFailsNothing) {
  for (const std::string& path : {testing::TempDir() + "/no/such/folder/trace", std::string("/dev/full/trace")}) {
    const UserConfig config = Alone(path);
    annulus_comm_t* comm = nullptr;
    testing::internal::CaptureStderr();
    EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("cannot write the trace (ANNULUS_TRACE) " + path), std::string::npos) << log;
    annulus_comm_t* child = nullptr;
    EXPECT_EQ(annulus_comm_dup(comm, &child), ANNULUS_OK) << LastMessage();
    EXPECT_EQ(annulus_barrier(child), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_destroy(child), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
  }
}

// Mounts a file system of one page at `folder` and fills it, for the calling thread and those that it starts.
bool MountFullDisk(const std::string& folder) {
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=4k") != 0) {
    return false;
  }
  std::ofstream(folder + "/page") << std::string(4096, 'x');
  std::ofstream more(folder + "/more");
  more << 'x';
  return !more.flush();
}

TEST(TraceSetting, AFullDiskIsLoggedAndFailsNothing) {
  const std::string folder = testing::TempDir() + "/full_disk";
  std::filesystem::create_directories(folder);
  bool mounted = false;
  std::thread([&] {
    mounted = MountFullDisk(folder);
    if (!mounted) return;
    const UserConfig config = Alone(folder + "/trace");
    annulus_comm_t* comm = nullptr;
    annulus_comm_t* child = nullptr;
    testing::internal::CaptureStderr();
    EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_split(comm, 0, 0, &child), ANNULUS_OK) << LastMessage();
    EXPECT_EQ(annulus_barrier(child), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_destroy(child), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
    const std::string log = testing::internal::GetCapturedStderr();
    for (const std::string& path : {folder + "/trace.0", folder + "/trace.0.2"}) {
      const std::string line = "cannot write the trace (ANNULUS_TRACE) " + path + ": " + std::strerror(ENOSPC);
      const size_t created = log.find(line);
      ASSERT_NE(created, std::string::npos) << log;
      EXPECT_NE(log.find(line, created + 1), std::string::npos) << "not logged at its end:\n" << log;
      EXPECT_FALSE(std::filesystem::exists(path + ".part"));
    }
  }).join();
  if (!mounted) GTEST_SKIP() << "no file system can be mounted here";
}

}  // namespace
}  // namespace annulus
