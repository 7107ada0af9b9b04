// Agreements beside all else that a communicator does: deadlines and aborts, messages, devices, many and single ranks,
// counters, and ranks of which only some compare.
#include <annulus.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collectives/engine/memory_budget.h"
#include "tests/collectives/harness/calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/links_fixture.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

ClusterConfig Checked(int nranks) {
  ClusterConfig config;
  config.nranks = nranks;
  config.check_calls = 1;
  config.timeout_ms = kFarTimeoutMs;
  return config;
}

int ScopeOfLast() {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  EXPECT_EQ(annulus_last_error(&error), ANNULUS_OK);
  return error.scope;
}

void ExpectWorks(annulus_comm_t* comm, int rank, int nranks) {
  Numbers sum(5);
  EXPECT_EQ(Sum(comm, Contribution(rank, 5, 3), &sum), ANNULUS_OK) << LastMessage(comm);
  EXPECT_EQ(sum, SumOfAll(nranks, 5, 3));
}

class AgreeLinksTest : public LinksTest {};

TEST_P(AgreeLinksTest, RightCallsHaveRightResultsAndWrongOnesTouchNothing) {
  ClusterConfig config = this->config();
  config.check_calls = 1;
  const Cluster cluster(config);
  cluster.Run([&](annulus_comm_t* comm, int rank) {
    for (const size_t count : {1, 1000, 50'000}) {
      Call call;
      call.kind = CollectiveKind::kAllreduce;
      call.type = DataType::kFloat32;
      call.op = ReduceOp::kSum;
      call.count = count;
      std::vector<Bytes> inputs;
      for (int r = 0; r < n(); ++r) inputs.push_back(MakeInput(call.type, count, r, 7));
      const UserBytes in = cluster.memory().Input(inputs[rank]);
      const UserBytes out = cluster.memory().Output(Bytes(inputs[rank].size()));
      const auto allreduce = [&](size_t elements) {
        return annulus_allreduce(comm, in.data(), out.data(), elements, ANNULUS_FLOAT32, ANNULUS_SUM);
      };
      EXPECT_EQ(allreduce(rank == n() - 1 ? count - 1 : count), n() == 1 ? ANNULUS_OK : ANNULUS_MISMATCH);
      if (n() > 1) {
        EXPECT_EQ(out.Read(), Bytes(inputs[rank].size()));
      }
      EXPECT_EQ(allreduce(count), ANNULUS_OK) << LastMessage(comm);
      EXPECT_EQ(out.Read(), ExpectedOn(GridOf(config), call, inputs, 0));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Links, AgreeLinksTest, OverLinks(1, 2, 3), LinksName);
INSTANTIATE_TEST_SUITE_P(Devices, AgreeLinksTest, OverSimLinks(2), LinksName);

TEST(AgreeLifeTest, ManyRanksOnSeveralHostsAgree) {
  ClusterConfig config = Checked(18);
  config.hosts = 3;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    EXPECT_EQ(annulus_broadcast(comm, nullptr, nullptr, 0, ANNULUS_INT8, rank == 11 ? 3 : 0), ANNULUS_MISMATCH);
    EXPECT_NE(LastMessage().find("rank 11 called broadcast #1 with root 3, the others with root 0"), std::string::npos)
        << LastMessage();
    ExpectWorks(comm, rank, config.nranks);
  });
}

TEST(AgreeLifeTest, ARankThatDoesNotComeEndsTheCommunicator) {
  Tally over;
  Cluster(Checked(3)).Run([&](annulus_comm_t* comm, int rank) {
    ExpectWorks(comm, rank, 3);
    if (rank == 1) {
      EXPECT_TRUE(over.WaitFor(2));
      return;
    }
    Calls calls;
    calls.Add(ANNULUS_CALL_BARRIER, nullptr, nullptr, 0, ANNULUS_INT8).timeout_ms = 2000;
    EXPECT_EQ(rank == 0 ? calls.Do(comm) : annulus_run(comm, &calls.back()), ANNULUS_TIMEOUT);
    EXPECT_NE(LastMessage().find("rank 1 has not entered agreement #3"), std::string::npos) << LastMessage();
    EXPECT_EQ(ScopeOfLast(), ANNULUS_SCOPE_COMMUNICATOR);
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_TIMEOUT);
    annulus_counters_t counters{};
    counters.struct_bytes = sizeof counters;
    EXPECT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_OK);
    EXPECT_EQ(counters.collectives, 1u);
    EXPECT_EQ(counters.collectives_failed, 1u);
    over.Add();
  });
}

TEST(AgreeLifeTest, AnAbortEndsWhatWaitsForAnAgreement) {
  Cluster(Checked(2)).Run([&](annulus_comm_t* comm, int rank) {
    ExpectWorks(comm, rank, 2);
    if (rank == 0) {
      EXPECT_EQ(annulus_comm_abort(comm, "enough"), ANNULUS_OK);
      return;
    }
    int32_t x = 1;
    Calls calls;
    for (int i = 0; i < 3; ++i) calls.Allreduce(&x, &x, 1, ANNULUS_INT32, ANNULUS_SUM);
    EXPECT_EQ(calls.Do(comm), ANNULUS_ABORTED) << LastMessage();
  });
}

TEST(AgreeLifeTest, ARankThatComparesFindsOneThatDoesNot) {
  ClusterConfig config = Checked(2);
  config.check_calls = 0;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    Calls calls;
    calls.Add(ANNULUS_CALL_BARRIER, nullptr, nullptr, 0, ANNULUS_INT8).flags = rank == 0 ? ANNULUS_AGREE_FIRST : 0;
    EXPECT_EQ(annulus_run(comm, &calls.back()), ANNULUS_MISMATCH);
    EXPECT_NE(LastMessage().find("rank 1 called barrier as collective #1, rank 0 called agreement"), std::string::npos)
        << LastMessage();
    EXPECT_EQ(ScopeOfLast(), ANNULUS_SCOPE_COMMUNICATOR);
  });
}

TEST(AgreeLifeTest, MessagesAreLeftAloneAndTheFlagOnThemIsRefused) {
  Cluster(Checked(2)).Run([&](annulus_comm_t* comm, int rank) {
    int32_t x = rank;
    const annulus_kind_t kind = rank == 0 ? ANNULUS_CALL_SEND : ANNULUS_CALL_RECV;
    Calls flagged;
    flagged.Rooted(kind, &x, &x, 1, ANNULUS_INT32, 1 - rank).flags = ANNULUS_AGREE_FIRST;
    EXPECT_EQ(annulus_run(comm, &flagged.back()), ANNULUS_INVALID_ARGUMENT);
    EXPECT_NE(LastMessage().find("ANNULUS_AGREE_FIRST"), std::string::npos) << LastMessage();
    // Rank 1 receives outside its group, before it makes the group's other calls.
    int32_t y = 5;
    Calls group;
    if (rank == 0) group.Rooted(ANNULUS_CALL_SEND, &y, nullptr, 1, ANNULUS_INT32, 1);
    group.Add(ANNULUS_CALL_BARRIER, nullptr, nullptr, 0, ANNULUS_INT8);
    group.Allreduce(&x, &x, rank == 0 ? 1 : 0, ANNULUS_INT32, ANNULUS_SUM);
    if (rank == 1) {
      EXPECT_EQ(annulus_recv(comm, &y, 1, ANNULUS_INT32, 0), ANNULUS_OK);
    }
    EXPECT_EQ(group.Do(comm), ANNULUS_MISMATCH);
    EXPECT_EQ(y, 5);
    EXPECT_EQ(x, rank);
    ExpectWorks(comm, rank, 2);
  });
}

TEST(AgreeLifeTest, ARefusalOfTheNamedFunctionsIsToldToo) {
  Cluster(Checked(2)).Run([&](annulus_comm_t* comm, int rank) {
    annulus_request_t* request = nullptr;
    if (rank == 1) {
      EXPECT_EQ(annulus_barrier_async(comm, nullptr), ANNULUS_INVALID_ARGUMENT);
    } else {
      EXPECT_EQ(annulus_barrier_async(comm, &request), ANNULUS_OK);
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_MISMATCH);
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_MISMATCH) << "an outcome stays the same";
      EXPECT_NE(LastMessage().find("rank 1 refused barrier #1 (invalid argument)"), std::string::npos) << LastMessage();
      EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    }
    ExpectWorks(comm, rank, 2);
    annulus_counters_t counters{};
    counters.struct_bytes = sizeof counters;
    EXPECT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_OK);
    EXPECT_EQ(counters.collectives, 1u);
    EXPECT_EQ(counters.collectives_failed, 0u) << "refused calls do not count";
  });
}

// Without an agreement the other rank would wait for the call that is refused here.
TEST(AgreeLifeTest, ARankThatReachesItsMemoryLimitTellsTheOther) {
  PlanSettings least;
  least.slots = 4;
  least.largest_slice_bytes = 16 * 1024;
  ClusterConfig config = Checked(2);
  config.memory_bytes = static_cast<int64_t>(MostMemory(2, least)) + 100'000;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    std::vector<annulus_request_t*> kept;
    annulus_status_t status = ANNULUS_OK;
    while (status == ANNULUS_OK) {
      annulus_request_t* request = nullptr;
      status = annulus_barrier_async(comm, &request);
      if (status == ANNULUS_OK) status = annulus_request_wait(request, -1);
      if (rank == 1 && request != nullptr) {
        kept.push_back(request);
      } else {
        EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
      }
    }
    const std::string message = LastMessage();
    EXPECT_EQ(status, rank == 1 ? ANNULUS_OUT_OF_MEMORY : ANNULUS_MISMATCH) << message;
    EXPECT_NE(message.find(rank == 1 ? "memory_bytes" : "rank 1 refused barrier"), std::string::npos) << message;
    for (annulus_request_t* request : kept) EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    ExpectWorks(comm, rank, 2);
  });
}

TEST(AgreeLifeTest, CallbacksHearOfARefusalAndSplitsInheritTheSetting) {
  Cluster(Checked(2)).Run([&](annulus_comm_t* comm, int rank) {
    Tally refused;
    Calls calls;
    annulus_call_t& call = calls.Add(ANNULUS_CALL_BARRIER, nullptr, nullptr, 0, ANNULUS_INT8);
    if (rank == 1) call.kind = ANNULUS_CALL_ALLGATHER;
    call.context = &refused;
    call.done = [](void* context, annulus_status_t status) {
      if (status == ANNULUS_MISMATCH) static_cast<Tally*>(context)->Add();
    };
    EXPECT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK);
    EXPECT_TRUE(refused.WaitFor(1));
    annulus_comm_t* child = nullptr;
    ASSERT_EQ(annulus_comm_dup(comm, &child), ANNULUS_OK) << LastMessage();
    EXPECT_EQ(annulus_broadcast(child, nullptr, nullptr, 0, ANNULUS_INT8, rank), ANNULUS_MISMATCH);
    ExpectWorks(child, rank, 2);
    EXPECT_EQ(annulus_comm_destroy(child), ANNULUS_OK);
  });
}

// A later call does not tell of a refusal, so the log does where the program does not ask.
TEST(AgreeLifeTest, ARefusalThatNobodyAsksForIsLogged) {
  enum class Asks { kNever, kFreesUnread, kWaits };
  for (const Asks asks : {Asks::kNever, Asks::kFreesUnread, Asks::kWaits}) {
    for (const size_t ncalls : {1, 2}) {
      testing::internal::CaptureStderr();
      Cluster(Checked(2)).Run([&](annulus_comm_t* comm, int rank) {
        Calls calls;
        for (size_t i = 0; i < ncalls; ++i) {
          const annulus_kind_t kind = rank == 1 ? ANNULUS_CALL_ALLGATHER : ANNULUS_CALL_BARRIER;
          calls.Add(kind, nullptr, nullptr, 0, ANNULUS_INT8);
        }
        annulus_request_t* request = nullptr;
        EXPECT_EQ(calls.Submit(comm, asks == Asks::kNever ? nullptr : &request), ANNULUS_OK);
        if (asks == Asks::kWaits) {
          EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_MISMATCH);
        }
        EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
        ExpectWorks(comm, rank, 2);
      });
      const std::string log = testing::internal::GetCapturedStderr();
      const size_t warnings = asks == Asks::kWaits ? 0 : 2;
      const std::string words = "a call whose outcome the program does not ask for was refused: ";
      size_t found = 0;
      for (size_t at = log.find(words); at != std::string::npos; at = log.find(words, at + 1)) ++found;
      EXPECT_EQ(found, warnings) << static_cast<int>(asks) << ", " << ncalls << " calls:\n" << log;
    }
  }
}

}  // namespace
}  // namespace annulus
