// Seeded programs of blocking, queued and grouped calls, some of which some ranks make otherwise or wrongly, against a
// model that knows what all ranks call: what they agree on has right results, all else is refused on all ranks in the
// same words, and the program goes on.
#include <annulus.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/collectives/harness/calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr int kSteps = 24;

// One call as one rank makes it.
struct OneCall {
  annulus_kind_t kind = ANNULUS_CALL_BARRIER;
  size_t count = 0;
  annulus_op_t op = ANNULUS_SUM;
  int root = 0;
  bool is_wrong = false;  // It is refused on this rank alone.
  bool operator==(const OneCall&) const = default;
};

struct Step {
  std::vector<std::vector<OneCall>> ranks;  // The calls of each rank, made together.
  bool is_queued = false;
  bool waits_after = false;  // For all that is queued.
  bool is_checked = false;
  int priority = 0;

  bool IsWrong(int rank) const {
    for (const OneCall& call : ranks[rank]) {
      if (call.is_wrong) return true;
    }
    return false;
  }
  annulus_status_t Expected(int rank) const {
    if (IsWrong(rank)) return ANNULUS_INVALID_ARGUMENT;
    for (const auto& calls : ranks) {
      if (calls != ranks[rank]) return ANNULUS_MISMATCH;
    }
    return ANNULUS_OK;
  }
};

struct Program {
  ClusterConfig config;
  std::vector<Step> steps;
};

OneCall RandomCall(std::mt19937* random, int nranks) {
  const annulus_kind_t kinds[] = {ANNULUS_CALL_ALLREDUCE, ANNULUS_CALL_ALLREDUCE, ANNULUS_CALL_ALLREDUCE,
                                  ANNULUS_CALL_REDUCE,    ANNULUS_CALL_BROADCAST, ANNULUS_CALL_ALLGATHER,
                                  ANNULUS_CALL_GATHER,    ANNULUS_CALL_BARRIER};
  const size_t counts[] = {0, 1, 7, 200, 9000};
  OneCall call;
  call.kind = kinds[(*random)() % std::size(kinds)];
  if (call.kind == ANNULUS_CALL_BARRIER) return call;
  call.count = counts[(*random)() % std::size(counts)];
  const bool reduces = call.kind == ANNULUS_CALL_ALLREDUCE || call.kind == ANNULUS_CALL_REDUCE;
  if (reduces) call.op = (*random)() % 2 == 0 ? ANNULUS_SUM : ANNULUS_MAX;
  const bool has_root =
      call.kind == ANNULUS_CALL_REDUCE || call.kind == ANNULUS_CALL_BROADCAST || call.kind == ANNULUS_CALL_GATHER;
  if (has_root) call.root = static_cast<int>((*random)() % nranks);
  return call;
}

// Makes another group of it. Now and then that is the same one.
void Spoil(std::mt19937* random, int nranks, bool is_group, std::vector<OneCall>* calls) {
  OneCall& one = (*calls)[(*random)() % calls->size()];
  switch ((*random)() % 4) {
    case 0:
      one = RandomCall(random, nranks);
      return;
    case 1:
      one.is_wrong = true;
      return;
    case 2:
      if (one.kind != ANNULUS_CALL_BARRIER) one.count += 1;
      return;
    default:
      if (is_group) calls->push_back(RandomCall(random, nranks));
      return;
  }
}

constexpr unsigned kSeeds = kSanitized ? 6 : 30;  // Of each shard.

Program MakeProgram(unsigned seed) {
  std::mt19937 random(seed);
  Program program;
  program.config.nranks = 2 + static_cast<int>(seed % 3);
  program.config.transport = seed % 5 == 0 ? "tcp" : "auto";
  program.config.check_calls = seed % 2;
  program.config.priorities = seed % 7 == 0 ? 1 : 0;
  program.config.hosts = seed % 11 == 0 ? 2 : 0;
  program.config.timeout_ms = kFarTimeoutMs;
  const int nranks = program.config.nranks;
  for (int i = 0; i < kSteps; ++i) {
    Step step;
    step.is_queued = random() % 2 == 0;
    step.waits_after = random() % 3 == 0;
    step.is_checked = program.config.check_calls != 0 || random() % 2 == 0;
    if (step.is_queued && program.config.priorities != 0) step.priority = static_cast<int>(random() % 3);
    std::vector<OneCall> calls(step.is_queued ? 1 + random() % 4 : 1);
    const bool is_group = calls.size() > 1;
    for (OneCall& call : calls) call = RandomCall(&random, nranks);
    step.ranks.assign(nranks, calls);
    while (step.is_checked && random() % 3 == 0) Spoil(&random, nranks, is_group, &step.ranks[random() % nranks]);
    program.steps.push_back(step);
  }
  return program;
}

// What one rank has been told.
struct Told {
  annulus_status_t status = ANNULUS_OK;
  std::string message;
};

// A step that this rank has begun, with its buffers.
class Running {
 public:
  Running(annulus_comm_t* comm, const Step& step, int rank, int nranks) : step_(step), rank_(rank), nranks_(nranks) {
    const std::vector<OneCall>& mine = step.ranks[rank];
    for (size_t i = 0; i < mine.size(); ++i) {
      const size_t room = mine[i].count * static_cast<size_t>(nranks);
      in_.push_back(Contribution(rank, room, static_cast<int>(i)));
      out_.emplace_back(room, kUntouched);
    }
    for (size_t i = 0; i < mine.size(); ++i) Add(mine[i], i);
    status_ = step.is_queued ? calls_.Submit(comm, &request_) : annulus_run(comm, &calls_.back());
    if (status_ != ANNULUS_OK) message_ = LastMessage();
  }

  Told End() {
    if (request_ != nullptr) {
      status_ = annulus_request_wait(request_, -1);
      if (status_ != ANNULUS_OK) message_ = LastMessage();
      EXPECT_EQ(annulus_request_free(request_), ANNULUS_OK);
    }
    EXPECT_EQ(status_, step_.Expected(rank_)) << message_;
    for (size_t i = 0; i < out_.size(); ++i) ExpectResult(i);
    return {status_, message_};
  }

 private:
  static constexpr int64_t kUntouched = -77;

  void Add(const OneCall& one, size_t i) {
    annulus_call_t& call = calls_.Add(one.kind, in_[i].data(), out_[i].data(), one.count, ANNULUS_INT64);
    call.op = one.op;
    call.root = one.root;
    call.priority = step_.priority;
    call.flags = step_.is_checked ? ANNULUS_AGREE_FIRST : 0;
    if (one.is_wrong) call.timeout_ms = -1;
  }

  void ExpectResult(size_t i) const {
    const OneCall& one = step_.ranks[rank_][i];
    if (status_ != ANNULUS_OK) {
      EXPECT_EQ(out_[i], Numbers(out_[i].size(), kUntouched)) << "data has moved";
    } else if (one.kind == ANNULUS_CALL_ALLREDUCE && one.op == ANNULUS_SUM) {
      Numbers expected = SumOfAll(nranks_, out_[i].size(), static_cast<int>(i));
      std::fill(expected.begin() + static_cast<ptrdiff_t>(one.count), expected.end(), kUntouched);
      EXPECT_EQ(out_[i], expected);
    }
  }

  const Step& step_;
  const int rank_;
  const int nranks_;
  std::vector<Numbers> in_;
  std::vector<Numbers> out_;
  Calls calls_;
  annulus_request_t* request_ = nullptr;
  annulus_status_t status_ = ANNULUS_OK;
  std::string message_;
};

void RunProgram(const Program& program) {
  const int nranks = program.config.nranks;
  std::vector<std::vector<Told>> told(nranks);
  Cluster(program.config).Run([&](annulus_comm_t* comm, int rank) {
    std::vector<std::unique_ptr<Running>> queued;
    const auto end_all = [&] {
      for (const auto& each : queued) told[rank].push_back(each->End());
      queued.clear();
    };
    for (const Step& step : program.steps) {
      queued.push_back(std::make_unique<Running>(comm, step, rank, nranks));
      if (step.waits_after) end_all();
    }
    end_all();
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK) << LastMessage(comm);
  });
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Told* first = nullptr;
    for (int rank = 0; rank < nranks; ++rank) {
      if (program.steps[i].IsWrong(rank)) continue;
      if (first == nullptr) first = &told[rank].at(i);
      EXPECT_EQ(told[rank].at(i).message, first->message) << "step " << i << ", rank " << rank;
    }
  }
}

class AgreeRandomTest : public testing::TestWithParam<unsigned> {};

TEST_P(AgreeRandomTest, ProgramsWithWrongCallsGoAsTheModelSays) {
  for (unsigned seed = GetParam(); seed < GetParam() + kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RunProgram(MakeProgram(seed));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AgreeRandomTest, testing::Values(0, 50, 100, 150));

}  // namespace
}  // namespace annulus
