// Failures of real processes whose buffers are device memory, on the stand-in for CUDA's driver: survivors get the
// usual verdict, no work of their GPU is left when the call has failed, and nothing when all is destroyed. A drain,
// wait, pin, context or preload that the library forgot would be found here: the stand-in forgets each in its place.

#include <annulus.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/fake_driver/fake_control.h"
#include "tests/faults/rank_processes.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr Nanoseconds kStart = 60 * kSecond;  // Generous: machines are busy, sanitizers slow.
constexpr int kRanks = 3;
constexpr const char* kManyBytes = kSanitized ? "1000000" : "4000000";
// What is staged as a whole. The ranks' calls have 800,000 bytes, inputs and outputs together.
constexpr const char* kStagedBytes = "ANNULUS_DEVICE_STAGED_BYTES";
constexpr const char* kStagesAll = "1000000";
constexpr const char* kStagesNothing = "0";

// A rank's GPU: whether it has one, and what the stand-in does wrong.
RankProcesses::Environment Gpu(bool has_gpu, cuda::Mistake mistake = cuda::Mistake::kNone) {
  if (!has_gpu) return {};
  const char* const options = std::getenv("ASAN_OPTIONS");
  return {{"FAULT_DRIVER", std::getenv("DEVICE_DRIVER")},
          {"FAULT_MISTAKE", std::to_string(static_cast<int>(mistake))},
          // A fault of GCC 12's leak check: it reads the thread-local variables of a library that was opened later.
          {"ASAN_OPTIONS", std::string(options != nullptr ? options : "") + ":intercept_tls_get_addr=0"}};
}

// Whether a rank writes that within the time that a start takes.
bool Writes(RankProcesses* ranks, int rank, const std::string& text) {
  const Child& worker = ranks->worker(rank);
  return Child::Wait(
      ranks->workers(), [&] { return worker.CountLines(text) > 0; }, Now() + kStart);
}

struct DeviceCase {
  std::string transport;
  int culprit;
  bool mixed;           // Rank 1 has host memory.
  bool staged = false;  // The calls are staged as a whole.
};

void PrintTo(const DeviceCase& c, std::ostream* out) { *out << c.transport << ", culprit " << c.culprit; }

std::string Name(const testing::TestParamInfo<DeviceCase>& info) {
  return info.param.transport + "culprit" + std::to_string(info.param.culprit) + (info.param.mixed ? "mixed" : "") +
         (info.param.staged ? "staged" : "");
}

class DeviceFaultsTest : public testing::TestWithParam<DeviceCase> {
 protected:
  int culprit() const { return GetParam().culprit; }
  bool HasGpu(int rank) const { return !GetParam().mixed || rank != 1; }

  // Starts the job; the culprit does something else than the others.
  void Start(const std::vector<std::string>& arguments, const std::vector<std::string>& of_culprit,
             int64_t timeout_ms = 60'000, const char* algorithm = "auto") {
    ranks_ = std::make_unique<RankProcesses>(
        kRanks, RankProcesses::Environment{{"ANNULUS_TRANSPORT", GetParam().transport},
                                           {"ANNULUS_ALGORITHM", algorithm},
                                           {kStagedBytes, GetParam().staged ? kStagesAll : kStagesNothing},
                                           {"ANNULUS_SHM_CUDA_IPC", in_place_},
                                           {"ANNULUS_TIMEOUT_MS", std::to_string(timeout_ms)}});
    for (int rank = 0; rank < kRanks; ++rank)
      ranks_->Start(rank, rank == culprit() ? of_culprit : arguments, Gpu(HasGpu(rank)));
    ASSERT_TRUE(ranks_->WaitForLine("ready", Now() + kStart))
        << ranks_->output(0) << ranks_->output(1) << ranks_->output(2);
  }

  // Every rank but `except` ends with one verdict, which blames the culprit, and leaves its GPU as it must.
  void ExpectVerdict(int except, int status) {
    const std::vector<WorkerVerdict> verdicts = ranks_->Verdicts(except, Now() + kStart);
    std::string message;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == except) continue;
      SCOPED_TRACE(testing::Message() << "rank " << rank << " wrote:\n" << ranks_->output(rank));
      ASSERT_TRUE(verdicts[rank].valid) << "no verdict, or destroy did not return";
      EXPECT_EQ(verdicts[rank].status, status);
      EXPECT_EQ(verdicts[rank].rank, culprit());
      if (message.empty()) message = verdicts[rank].message;
      EXPECT_EQ(verdicts[rank].message, message) << "ranks disagree";
      EXPECT_EQ(ranks_->output(rank).find("not refused"), std::string::npos);
      EXPECT_EQ(ranks_->output(rank).find("wrong on GPU"), std::string::npos);
      EXPECT_EQ(ranks_->worker(rank).ExitStatus(Now() + kStart), 0);
    }
  }

  const char* in_place_ = "auto";  // Whether GPUs read slices in peers' memory.
  std::unique_ptr<RankProcesses> ranks_;
};

TEST_P(DeviceFaultsTest, KilledRankIsNamed) {
  Start({"loop", kManyBytes}, {"loop", kManyBytes});
  ranks_->Signal(culprit(), SIGKILL);
  ExpectVerdict(culprit(), ANNULUS_PEER_LOST);
}

TEST_P(DeviceFaultsTest, KilledRankIsNamedWithAsynchronousWorkPending) {
  Start({"async"}, {"async"});
  ranks_->Signal(culprit(), SIGKILL);
  ExpectVerdict(culprit(), ANNULUS_PEER_LOST);
}

TEST_P(DeviceFaultsTest, KilledRankIsNamedAndTheStreamsOfTheOthersGoOn) {
  Start({"stream"}, {"stream"});
  ranks_->Signal(culprit(), SIGKILL);
  ExpectVerdict(culprit(), ANNULUS_PEER_LOST);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ranks_->worker(rank).HasLine("the stream goes on"), rank != culprit() && HasGpu(rank));
  }
}

TEST_P(DeviceFaultsTest, StoppedRankIsNamedAndTheStreamsOfTheOthersGoOn) {
  Start({"stream"}, {"stream"}, 5000);
  ranks_->Signal(culprit(), SIGSTOP);
  ExpectVerdict(culprit(), ANNULUS_TIMEOUT);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ranks_->worker(rank).HasLine("the stream goes on"), rank != culprit() && HasGpu(rank));
  }
}

// One rank's GPU folds in the memory of all, once they have agreed. It may be that of the culprit.
TEST_P(DeviceFaultsTest, KilledRankIsNamedWhereStreamsShareTheirMemory) {
  if (GetParam().transport != "shm" || GetParam().mixed) GTEST_SKIP() << "not all ranks reach each other's memory";
  for (const int signal : {SIGKILL, SIGSTOP}) {
    ranks_ = std::make_unique<RankProcesses>(
        kRanks, RankProcesses::Environment{{"ANNULUS_TRANSPORT", "shm"},
                                           {"ANNULUS_STREAM_FOLD_BYTES", "262144"},
                                           {"ANNULUS_TIMEOUT_MS", signal == SIGKILL ? "60000" : "5000"}});
    for (int rank = 0; rank < kRanks; ++rank) ranks_->Start(rank, {"stream"}, Gpu(true));
    ASSERT_TRUE(Writes(ranks_.get(), 0, "launches")) << ranks_->output(0);
    ranks_->Signal(culprit(), signal);
    ExpectVerdict(culprit(), signal == SIGKILL ? ANNULUS_PEER_LOST : ANNULUS_TIMEOUT);
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_EQ(ranks_->worker(rank).HasLine("the stream goes on"), rank != culprit());
  }
}

// The survivors' calls return when their GPUs have begun and done what they were given before. A ring through slots
// gives them work before all ranks have entered.
TEST_P(DeviceFaultsTest, KilledRankIsNamedWhileGpusAreBusyWithOtherWork) {
  in_place_ = "off";
  Start({"hold"}, {"idle"}, 60'000, "ring");
  for (int rank = 0; rank < kRanks; ++rank) {
    const bool holds = rank != culprit() && HasGpu(rank);
    ASSERT_TRUE(!holds || Writes(ranks_.get(), rank, "holding")) << ranks_->output(rank);
  }
  ranks_->Signal(culprit(), SIGKILL);
  ExpectVerdict(culprit(), ANNULUS_PEER_LOST);
}

// The GPU of the second rank behind the culprit has begun to read the memory of the first one, which gives up.
TEST_P(DeviceFaultsTest, KilledRankIsNamedWhileAGpuReadsTheMemoryOfAPeer) {
  if (GetParam().transport != "shm" || GetParam().mixed) GTEST_SKIP() << "not all ranks reach each other's memory";
  Start({"hold"}, {"idle"}, 60'000, "ring");
  const int reader = (culprit() + 2) % kRanks;
  ASSERT_TRUE(Writes(ranks_.get(), reader, "holding")) << ranks_->output(reader);
  ranks_->Signal(culprit(), SIGKILL);
  ExpectVerdict(culprit(), ANNULUS_PEER_LOST);
}

TEST_P(DeviceFaultsTest, StoppedRankIsNamedAtTheDeadline) {
  Start({"loop", "40000"}, {"loop", "40000"}, 5000);
  ranks_->Signal(culprit(), SIGSTOP);
  ExpectVerdict(culprit(), ANNULUS_TIMEOUT);
}

TEST_P(DeviceFaultsTest, ARankWhoseGpuFailsIsNamed) {
  // One fold over shared memory has no copies that could fail.
  Start({"loop"}, {"gpu_fails"}, 60'000, "ring");
  ExpectVerdict(-1, ANNULUS_SYSTEM_ERROR);
}

// A sanitizer's build, which takes ten times as long, runs two of the five.
std::vector<DeviceCase> Cases() {
  if (kSanitized) return {{"shm", 2, true, true}, {"tcp", 0, true}};
  return {{"shm", 0, false}, {"shm", 1, false}, {"shm", 2, true, true}, {"tcp", 2, false, true}, {"tcp", 0, true}};
}

INSTANTIATE_TEST_SUITE_P(Jobs, DeviceFaultsTest, testing::ValuesIn(Cases()), Name);

// Transport, and what is staged.
class PlantedMistakesTest : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  // Two ranks that make the mistake, and do `mode`. A ring copies and pins, which one fold does not.
  void Start(cuda::Mistake mistake, const char* mode) {
    ranks_ = std::make_unique<RankProcesses>(2, RankProcesses::Environment{{"ANNULUS_TRANSPORT", GetParam().first},
                                                                           {"ANNULUS_ALGORITHM", "ring"},
                                                                           {"ANNULUS_TIMEOUT_MS", "60000"},
                                                                           {kStagedBytes, GetParam().second}});
    for (int rank = 0; rank < 2; ++rank) ranks_->Start(rank, {mode}, Gpu(true, mistake));
  }

  std::unique_ptr<RankProcesses> ranks_;
};

TEST_P(PlantedMistakesTest, WithoutOneNothingIsFound) {
  Start(cuda::Mistake::kNone, "hold");
  ASSERT_TRUE(Writes(ranks_.get(), 1, "holding")) << ranks_->output(1);
  ranks_->Signal(0, SIGKILL);
  EXPECT_TRUE(Writes(ranks_.get(), 1, "ended ")) << ranks_->output(1);
  EXPECT_EQ(ranks_->worker(1).CountLines("wrong on GPU"), 0) << ranks_->output(1);
}

TEST_P(PlantedMistakesTest, AMissingDrainIsFound) {
  Start(cuda::Mistake::kNoDrain, "hold");
  ASSERT_TRUE(Writes(ranks_.get(), 1, "holding")) << ranks_->output(1);
  ranks_->Signal(0, SIGKILL);
  EXPECT_TRUE(Writes(ranks_.get(), 1, "wrong on GPU: device memory is read while work on it is pending"))
      << ranks_->output(1);
  EXPECT_TRUE(Writes(ranks_.get(), 1, "wrong on GPU: pinned memory is ")) << ranks_->output(1);
}

TEST_P(PlantedMistakesTest, AMissingWaitIsFound) {
  Start(cuda::Mistake::kNoWait, "loop");
  // The rank that sees its sum first ends.
  const auto is_found = [&] {
    return ranks_->worker(0).CountLines("check failed") + ranks_->worker(1).CountLines("check failed") > 0;
  };
  EXPECT_TRUE(Child::Wait(ranks_->workers(), is_found, Now() + kStart)) << ranks_->output(0) << ranks_->output(1);
}

TEST_P(PlantedMistakesTest, AMissingPinOrContextFailsTheFirstCall) {
  for (const cuda::Mistake mistake : {cuda::Mistake::kNoPin, cuda::Mistake::kNoPush}) {
    Start(mistake, "loop");
    for (const WorkerVerdict& verdict : ranks_->Verdicts(-1, Now() + kStart))
      EXPECT_EQ(verdict.status, ANNULUS_SYSTEM_ERROR) << ranks_->output(0) << ranks_->output(1);
    EXPECT_FALSE(ranks_->worker(0).HasLine("ready"));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, PlantedMistakesTest,
                         testing::Values(std::pair("shm", kStagesNothing), std::pair("tcp", kStagesNothing),
                                         std::pair("shm", kStagesAll), std::pair("tcp", kStagesAll)),
                         [](const auto& info) {
                           return info.param.first + std::string(info.param.second == kStagesAll ? "staged" : "");
                         });

}  // namespace
}  // namespace annulus
