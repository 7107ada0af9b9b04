// Calls on which the ranks agree before any data moves: every kind of disagreement is refused in the same words on all
// ranks, as is a call that one rank refuses, and the communicator goes on.
#include <annulus.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "tests/collectives/harness/calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/links_fixture.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr int kRanks = 3;
constexpr int kOdd = 1;  // The rank that does otherwise.
constexpr size_t kElements = 16;

enum class Way { kBlocking, kQueued };

// What one rank has been told of a call.
struct Told {
  annulus_status_t status = ANNULUS_OK;
  int scope = ANNULUS_SCOPE_CALL;
  int rank = -1;
  std::string message;
  bool operator==(const Told&) const = default;
};

Told TellOf(annulus_status_t status) {
  if (status == ANNULUS_OK) return {};
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  EXPECT_EQ(annulus_last_error(&error), ANNULUS_OK);
  EXPECT_EQ(error.status, status);
  return {status, error.scope, error.rank, error.message};
}

Told Make(annulus_comm_t* comm, const Calls& calls, Way way) {
  return TellOf(way == Way::kBlocking ? annulus_run(comm, &const_cast<Calls&>(calls).back()) : calls.Do(comm));
}

// Whether the communicator still gives right results.
void ExpectWorks(annulus_comm_t* comm, int rank, int nranks) {
  Numbers sum(5);
  EXPECT_EQ(Sum(comm, Contribution(rank, 5, 3), &sum), ANNULUS_OK) << LastMessage(comm);
  EXPECT_EQ(sum, SumOfAll(nranks, 5, 3));
}

ClusterConfig Checked(int nranks = kRanks) {
  ClusterConfig config;
  config.nranks = nranks;
  config.check_calls = 1;
  config.timeout_ms = kFarTimeoutMs;
  return config;
}

// A call and what rank kOdd makes of it.
struct Case {
  annulus_kind_t kind;
  std::function<void(annulus_call_t*)> odd;
  std::string message;  // With # for the number of the collective.
  annulus_status_t refused = ANNULUS_OK;
};

// The buffers and counts of one rank.
struct Data {
  std::array<int32_t, kElements> in{};
  std::array<int32_t, kElements> out{};
  std::array<size_t, kRanks> ones{1, 1, 1};
  std::array<size_t, kRanks> other_sum{2, 1, 1};
  std::array<size_t, kRanks> same_sum{0, 1, 2};
  std::array<size_t, kRanks> more_to_2{1, 1, 2};
  std::array<size_t, kRanks> two_more{3, 1, 2};

  annulus_call_t& AddTo(Calls* calls, annulus_kind_t kind) {
    annulus_call_t& call = calls->Add(kind, in.data(), out.data(), 1, ANNULUS_INT32);
    call.sendcounts = call.recvcounts = ones.data();
    return call;
  }
};

std::string WithoutNumber(std::string message) {
  const size_t at = message.find('#');
  if (at == std::string::npos) return message;
  const size_t end = message.find_first_not_of("0123456789", at + 1);
  return message.erase(at + 1, end == std::string::npos ? end : end - at - 1);
}

// Makes the case's call on all ranks, and compares what they are told.
void Try(const Case& each, const ClusterConfig& config, Way way, uint64_t flags) {
  std::vector<Told> told(kRanks);
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    for (int again = 0; again < 2; ++again) {
      Data data;
      Calls calls;
      annulus_call_t& call = data.AddTo(&calls, each.kind);
      call.flags = flags;
      if (rank == kOdd) each.odd(&call);
      told[rank] = Make(comm, calls, way);
      EXPECT_EQ(data.out, Data().out) << "data has moved";
      ExpectWorks(comm, rank, kRanks);
    }
    annulus_error_t verdict{};
    verdict.struct_bytes = sizeof verdict;
    EXPECT_EQ(annulus_comm_verdict(comm, &verdict), ANNULUS_OK);
    EXPECT_EQ(verdict.status, ANNULUS_OK);
  });
  EXPECT_EQ(told[0].status, ANNULUS_MISMATCH);
  EXPECT_EQ(told[0].scope, ANNULUS_SCOPE_CALL);
  EXPECT_EQ(WithoutNumber(told[0].message), each.message);
  EXPECT_EQ(told[2], told[0]);
  if (each.refused == ANNULUS_OK) {
    EXPECT_EQ(told[kOdd], told[0]);
  } else {
    EXPECT_EQ(told[0].rank, kOdd);
    EXPECT_EQ(told[kOdd].status, each.refused);
    EXPECT_EQ(told[kOdd].scope, ANNULUS_SCOPE_CALL);
    EXPECT_EQ(told[kOdd].rank, kOdd);
  }
}

void TryAll(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    SCOPED_TRACE(each.message);
    Try(each, Checked(), Way::kBlocking, 0);
    Try(each, Checked(), Way::kQueued, 0);
    ClusterConfig by_flag = Checked();
    by_flag.check_calls = 0;
    Try(each, by_flag, Way::kBlocking, ANNULUS_AGREE_FIRST);
  }
}

TEST(AgreeFirstTest, EveryDifferenceIsRefusedOnAllRanksInTheSameWords) {
  const auto set_kind = [](annulus_call_t* c) { c->kind = ANNULUS_CALL_REDUCE; };
  const auto set_type = [](annulus_call_t* c) { c->type = ANNULUS_FLOAT32; };
  const auto set_op = [](annulus_call_t* c) { c->op = ANNULUS_MAX; };
  const auto set_root = [](annulus_call_t* c) { c->root = 2; };
  const auto set_count = [](annulus_call_t* c) { c->count = 3; };
  TryAll({
      {ANNULUS_CALL_ALLREDUCE, set_kind, "rank 1 called reduce as collective #, the others called allreduce"},
      {ANNULUS_CALL_ALLREDUCE, set_count, "rank 1 called allreduce # with count 3, the others with count 1"},
      {ANNULUS_CALL_ALLREDUCE, set_type, "rank 1 called allreduce # with type float32, the others with type int32"},
      {ANNULUS_CALL_ALLREDUCE, set_op, "rank 1 called allreduce # with operation max, the others with operation sum"},
      {ANNULUS_CALL_BROADCAST, set_root, "rank 1 called broadcast # with root 2, the others with root 0"},
      {ANNULUS_CALL_GATHER, set_count, "rank 1 called gather # with count 3, the others with count 1"},
  });
}

TEST(AgreeFirstTest, CountsOfPartsThatDoNotMatchAreNamed) {
  Data data;
  const auto other = [&](annulus_call_t* c) { c->recvcounts = c->sendcounts = data.other_sum.data(); };
  const auto swapped = [&](annulus_call_t* c) { c->recvcounts = c->sendcounts = data.same_sum.data(); };
  const auto more = [](annulus_call_t* c) { c->count = 2; };
  const auto fewer = [](annulus_call_t* c) { c->count = 0; };
  const auto one_pair = [&](annulus_call_t* c) { c->sendcounts = data.more_to_2.data(); };
  const auto two_pairs = [&](annulus_call_t* c) { c->sendcounts = data.two_more.data(); };
  TryAll({
      {ANNULUS_CALL_ALLGATHERV, other,
       "rank 1 called allgatherv # with counts for 4 elements, the others with counts for 3 elements;"
       " they differ in counts[0]"},
      {ANNULUS_CALL_REDUCE_SCATTERV, other,
       "rank 1 called reduce_scatterv # with counts for 4 elements, the others with counts for 3 elements;"
       " they differ in counts[0]"},
      {ANNULUS_CALL_ALLGATHERV, swapped,
       "rank 1 called allgatherv # with other counts than the others, though of the same sum;"
       " they differ in counts[0]"},
      {ANNULUS_CALL_REDUCE_SCATTERV, swapped,
       "rank 1 called reduce_scatterv # with other counts than the others, though of the same sum;"
       " they differ in counts[0]"},
      {ANNULUS_CALL_GATHERV, more, "rank 1 sends rank 0 1 element more than that expects in gatherv #"},
      {ANNULUS_CALL_SCATTERV, more, "rank 0 sends rank 1 1 element fewer than that expects in scatterv #"},
      {ANNULUS_CALL_SCATTERV, fewer, "rank 0 sends rank 1 1 element more than that expects in scatterv #"},
      {ANNULUS_CALL_ALLTOALLV, one_pair, "rank 1 sends rank 2 1 element more than that expects in alltoallv #"},
      {ANNULUS_CALL_ALLTOALLV, two_pairs, "the counts of several pairs of ranks do not match in alltoallv #"},
  });
}

TEST(AgreeFirstTest, ACallThatOneRankRefusesIsRefusedOnAll) {
  const annulus_status_t invalid = ANNULUS_INVALID_ARGUMENT;
  const auto root = [](annulus_call_t* c) { c->root = 99; };
  const auto null = [](annulus_call_t* c) { c->recvbuf = nullptr; };
  const auto type = [](annulus_call_t* c) { c->type = ANNULUS_TYPE_LAST; };
  const auto op = [](annulus_call_t* c) { c->op = static_cast<annulus_op_t>(99); };
  const auto priority = [](annulus_call_t* c) { c->priority = 1; };
  const auto timeout = [](annulus_call_t* c) { c->timeout_ms = -1; };
  const auto wire = [](annulus_call_t* c) { c->wire = 7; };
  TryAll({
      {ANNULUS_CALL_BROADCAST, root, "rank 1 refused broadcast # (invalid argument)", invalid},
      {ANNULUS_CALL_ALLREDUCE, null, "rank 1 refused allreduce # (invalid argument)", invalid},
      {ANNULUS_CALL_ALLGATHER, type, "rank 1 refused allgather # (invalid argument)", invalid},
      {ANNULUS_CALL_REDUCE_SCATTER, op, "rank 1 refused reduce_scatter # (invalid argument)", invalid},
      {ANNULUS_CALL_BARRIER, priority, "rank 1 refused barrier # (invalid argument)", invalid},
      {ANNULUS_CALL_ALLTOALL, timeout, "rank 1 refused alltoall # (invalid argument)", invalid},
      {ANNULUS_CALL_GATHER, wire, "rank 1 refused gather # (unsupported)", ANNULUS_UNSUPPORTED},
  });
}

// The group that each rank submits, of as many allreduces of one element; and what all are told.
void TryGroups(const std::function<void(int rank, Calls* calls, Data* data)>& build, const std::string& message) {
  std::vector<Told> told(kRanks);
  Cluster(Checked()).Run([&](annulus_comm_t* comm, int rank) {
    for (int again = 0; again < 2; ++again) {
      Data data;
      Calls calls;
      build(rank, &calls, &data);
      told[rank] = Make(comm, calls, Way::kQueued);
      EXPECT_EQ(data.out, Data().out) << "data has moved";
      ExpectWorks(comm, rank, kRanks);
    }
  });
  EXPECT_EQ(WithoutNumber(told[0].message), message);
  EXPECT_EQ(told[2], told[0]);
  EXPECT_EQ(told[kOdd] == told[0], message.find("refused") == std::string::npos);
}

void AddAllreduces(size_t number, Calls* calls, Data* data) {
  for (size_t i = 0; i < number; ++i) {
    calls->Allreduce(&data->in[i % kElements], &data->out[i % kElements], 1, ANNULUS_INT32, ANNULUS_SUM);
  }
}

TEST(AgreeFirstTest, AGroupIsAgreedOnAsAWhole) {
  const auto longer = [](int rank, Calls* calls, Data* data) { AddAllreduces(rank == kOdd ? 3 : 4, calls, data); };
  TryGroups(longer, "rank 1 submitted a group of 3 collectives as #, the others a group of 4 collectives");
  const auto alone = [](int rank, Calls* calls, Data* data) { AddAllreduces(rank == kOdd ? 1 : 2, calls, data); };
  TryGroups(alone, "rank 1 submitted one collective as #, the others a group of 2 collectives");
  const auto first = [](int rank, Calls* calls, Data* data) {
    AddAllreduces(1, calls, data);
    if (rank == kOdd) calls->back().op = ANNULUS_MIN;
    data->AddTo(calls, ANNULUS_CALL_BARRIER);
  };
  TryGroups(first,
            "rank 1 called allreduce # with operation min, the others with operation sum (the first of a group)");
  const auto third = [](int rank, Calls* calls, Data* data) {
    AddAllreduces(3, calls, data);
    if (rank == kOdd) calls->back().count = 2;
    AddAllreduces(2, calls, data);
  };
  TryGroups(third, "rank 1 called collective 2 of group # otherwise than the others");
  const auto many = [](int rank, Calls* calls, Data* data) {
    for (int i = 0; i < 80; ++i)
      data->AddTo(calls, i == 37 && rank == kOdd ? ANNULUS_CALL_REDUCE : ANNULUS_CALL_BARRIER);
  };
  TryGroups(many, "rank 1 called one of the collectives 30 to 39 of group # otherwise than the others");
  const auto counts = [](int rank, Calls* calls, Data* data) {
    data->AddTo(calls, ANNULUS_CALL_BARRIER);
    annulus_call_t& call = data->AddTo(calls, ANNULUS_CALL_ALLTOALLV);
    if (rank == kOdd) call.sendcounts = data->more_to_2.data();
  };
  TryGroups(counts, "rank 1 sends rank 2 1 element more than that expects in collective 1 of group #");
  const auto invalid = [](int rank, Calls* calls, Data* data) {
    AddAllreduces(3, calls, data);
    if (rank == kOdd) calls->back().type = ANNULUS_TYPE_LAST;
  };
  TryGroups(invalid, "rank 1 refused group # (invalid argument)");
  const auto chained = [](int rank, Calls* calls, Data* data) {
    AddAllreduces(2, calls, data);
    if (rank == kOdd) calls->back().sendbuf = &data->out[0];
  };
  TryGroups(chained, "rank 1 cannot combine the allreduces of group # as the others can: some use what others write");
}

// So it waits for the others as long as they may take, and they hear that it refused.
TEST(AgreeFirstTest, ARankThatRefusesACallHasItsTimeLimitAllTheSame) {
  for (const bool by_library : {false, true}) {
    ClusterConfig config = Checked(2);
    config.timeout_ms = 200;
    Tally refused;
    Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
      Data data;
      Calls calls;
      annulus_call_t& call = data.AddTo(&calls, ANNULUS_CALL_ALLREDUCE);
      call.timeout_ms = kFarTimeoutMs;
      if (rank == 0 && by_library) call.wire = 7;
      if (rank == 0 && !by_library) call.recvbuf = nullptr;
      if (rank == 0) {
        annulus_request_t* request = nullptr;
        EXPECT_NE(calls.Submit(comm, &request), ANNULUS_OK);
        refused.Add();
      } else {
        ASSERT_TRUE(refused.WaitFor(1));
        poll(nullptr, 0, 1000);  // Five times the communicator's limit.
        const Told told = TellOf(calls.Do(comm));
        EXPECT_EQ(told.status, ANNULUS_MISMATCH);
        EXPECT_EQ(told.rank, 0) << told.message;
      }
      if (rank == 1) refused.Add();
      ASSERT_TRUE(refused.WaitFor(2));
      Calls last;
      data.AddTo(&last, ANNULUS_CALL_BARRIER).timeout_ms = kFarTimeoutMs;
      EXPECT_EQ(last.Do(comm), ANNULUS_OK) << LastMessage();
    });
  }
}

}  // namespace
}  // namespace annulus
