// Operations that users create, through the C API: right bits in every collective that reduces, and every wrong use of
// them refused or found.

#include <annulus.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/harness/c_call.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/links_fixture.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllreduce, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kReduce};
enum class Form { kOutOfPlace, kInPlace, kAsync };

// Runs `call` with operation `op` and compares with the oracle.
void CheckCall(annulus_comm_t* comm, Call call, annulus_op_t op, const CreatedOp& created, int rank, int n, Form form) {
  SCOPED_TRACE(testing::Message() << KindName(call.kind) << " " << TypeName(call.type) << " count " << call.count
                                  << " n " << n << " form " << static_cast<int>(form));
  std::vector<Bytes> inputs;
  for (int r = 0; r < n; ++r) inputs.push_back(MakeInput(call.type, InputElements(call, n), r, call.count + 1));
  const Bytes expected = ExpectedOutput(call, inputs, rank, created);
  Bytes input = inputs[rank];
  Bytes output(OutputElements(call, n) * TypeBytes(call.type), std::byte{0xcd});
  const size_t own_part = call.kind == CollectiveKind::kReduceScatter ? output.size() * rank : 0;
  std::byte* out = form == Form::kInPlace ? input.data() + own_part : output.data();
  call.op = static_cast<ReduceOp>(op);  // RunCall hands it on as a number.
  if (form == Form::kAsync) {
    annulus_request_t* request = nullptr;
    ASSERT_EQ(SubmitCall(comm, call, input.data(), out, &request), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    annulus_request_free(request);
  } else {
    ASSERT_EQ(RunCall(comm, call, input.data(), out), ANNULUS_OK) << LastMessage(comm);
  }
  ASSERT_TRUE(expected.empty() || std::memcmp(out, expected.data(), expected.size()) == 0) << "rank " << rank;
  if (form != Form::kInPlace) {
    ASSERT_EQ(input, inputs[rank]) << "the input was touched";
  }
}

// All kinds, in some of the forms, by one hop and by the ring.
void CheckEverywhere(annulus_comm_t* comm, DataType type, annulus_op_t op, const CreatedOp& created, int rank, int n,
                     const std::vector<Form>& forms) {
  for (CollectiveKind kind : kKinds) {
    for (Form form : forms) {
      for (size_t count : {0, 3, 20011}) {
        Call call;
        call.kind = kind;
        call.type = type;
        call.root = HasRoot(kind) ? n - 1 : 0;
        call.count = count;
        CheckCall(comm, call, op, created, rank, n, form);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

class OperationsTest : public LinksTest {
 protected:
  ClusterConfig config() const {
    ClusterConfig config = LinksTest::config();
    config.slice_bytes = 4096;
    return config;
  }
};

TEST_P(OperationsTest, PremulSumAddsEachRanksInputTimesItsFactor) {
  const int n = config().nranks;
  Cluster(config()).Run([n](annulus_comm_t* comm, int rank) {
    int next_op = 16;
    // reducer_custom_test has all types, under the sanitizers too.
    for (int type_number = 0; type_number < kNumDataTypes; type_number += kSanitized ? 4 : 1) {
      const auto type = static_cast<DataType>(type_number);
      if (type == DataType::kBool) continue;  // Which has no factors.
      CreatedOp created;
      created.factors = MakeFactors(type, n);
      annulus_op_t op{};
      ASSERT_EQ(annulus_op_create_premul_sum(comm, created.factors[rank], &op), ANNULUS_OK);
      EXPECT_EQ(op, next_op++);
      // The forms in turn; all types in all of them would take long.
      CheckEverywhere(comm, type, op, created, rank, n, {static_cast<Form>(type_number % 3)});
      if (testing::Test::HasFatalFailure()) return;
      EXPECT_EQ(annulus_op_destroy(comm, op), ANNULUS_OK);
    }
  });
}

TEST_P(OperationsTest, FunctionsCombineInTheOrderOfRanksThatIsPromised) {
  const int n = config().nranks;
  Cluster(config()).Run([n](annulus_comm_t* comm, int rank) {
    size_t combined = 0;
    CreatedOp created;
    created.function = ComposeLines;
    annulus_op_t op{};
    ASSERT_EQ(annulus_op_create(comm, ComposeLines, &combined, nullptr, &op), ANNULUS_OK);
    CheckEverywhere(comm, DataType::kUint32, op, created, rank, n, {Form::kOutOfPlace, Form::kInPlace, Form::kAsync});
    EXPECT_EQ(combined > 0, n > 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Links, OperationsTest, OverLinks(1, 2, 3, 5), LinksName);

// What both ranks are told when they call with different operations.
std::vector<std::string> MismatchOf(const std::function<annulus_op_t(annulus_comm_t* comm, int rank)>& choose) {
  std::vector<std::string> messages(2);
  Cluster(ClusterConfig{}).Run([&](annulus_comm_t* comm, int rank) {
    const annulus_op_t op = choose(comm, rank);
    uint32_t x = 1;
    EXPECT_EQ(annulus_allreduce(comm, &x, &x, 1, ANNULUS_UINT32, op), ANNULUS_MISMATCH);
    messages[rank] = LastMessage(comm);
  });
  return messages;
}

TEST(OperationsMismatchTest, APremulSumIsNotAFunctionOfTheSameNumber) {
  const std::vector<std::string> messages = MismatchOf([](annulus_comm_t* comm, int rank) {
    annulus_op_t op{};
    const annulus_status_t created = rank == 0 ? annulus_op_create_premul_sum(comm, 2, &op)
                                               : annulus_op_create(comm, ComposeLines, nullptr, nullptr, &op);
    EXPECT_EQ(created, ANNULUS_OK);
    EXPECT_EQ(op, 16);
    return op;
  });
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_NE(messages[0].find("premul_sum in slot 0"), std::string::npos) << messages[0];
  EXPECT_NE(messages[0].find("user operation in slot 0"), std::string::npos) << messages[0];
}

TEST(OperationsMismatchTest, TwoFunctionsAreToldApart) {
  const std::vector<std::string> messages = MismatchOf([](annulus_comm_t* comm, int rank) {
    annulus_op_t ops[2]{};
    for (annulus_op_t& op : ops) EXPECT_EQ(annulus_op_create(comm, ComposeLines, nullptr, nullptr, &op), ANNULUS_OK);
    return ops[rank];
  });
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_NE(messages[0].find("user operation in slot 1"), std::string::npos) << messages[0];
}

TEST(OperationsMismatchTest, ACreatedOperationIsNotABuiltInOne) {
  const std::vector<std::string> messages = MismatchOf([](annulus_comm_t* comm, int rank) {
    annulus_op_t op = ANNULUS_SUM;
    if (rank == 0) {
      EXPECT_EQ(annulus_op_create_premul_sum(comm, 1, &op), ANNULUS_OK);
    }
    return op;
  });
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_NE(messages[0].find("operation sum"), std::string::npos) << messages[0];
}

// One rank alone, for what is refused before anything is sent.
template <class Body>
void WithOneRank(Body body) {
  ClusterConfig config;
  config.nranks = 1;
  Cluster(config).Run([&body](annulus_comm_t* comm, int) { body(comm); });
}

annulus_status_t Sum(annulus_comm_t* comm, annulus_op_t op, annulus_type_t type = ANNULUS_INT32) {
  int64_t x[2] = {1, 2};
  return annulus_allreduce(comm, x, x, 2, type, op);
}

TEST(OperationsErrorsTest, UnknownNumbersAreRefusedAndNamed) {
  WithOneRank([](annulus_comm_t* comm) {
    for (int number : {8, 15, 16, 64, 70, 128, 200, 255, 256, 1000, 0x7fffffff}) {
      EXPECT_EQ(Sum(comm, static_cast<annulus_op_t>(number)), ANNULUS_INVALID_ARGUMENT) << number;
      const std::string message = LastMessage(comm);
      EXPECT_EQ(message.find("op is "), 0u) << message;
      if (number >= 16) {
        EXPECT_NE(message.find(std::to_string(number)), std::string::npos) << message;
      }
      EXPECT_EQ(annulus_op_destroy(comm, static_cast<annulus_op_t>(number)), ANNULUS_INVALID_ARGUMENT) << number;
    }
    EXPECT_EQ(annulus_op_destroy(comm, ANNULUS_SUM), ANNULUS_INVALID_ARGUMENT);
    annulus_op_t op{};
    EXPECT_EQ(annulus_op_create(comm, nullptr, nullptr, nullptr, &op), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(LastMessage(comm), "fn is null");
    EXPECT_EQ(annulus_op_create(comm, ComposeLines, nullptr, nullptr, nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(LastMessage(comm), "op is null");
    EXPECT_EQ(annulus_op_create_premul_sum(nullptr, 1, &op), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(Sum(comm, ANNULUS_SUM), ANNULUS_OK) << "the communicator stays usable";
  });
}

TEST(OperationsErrorsTest, NumbersAreNeverUsedAgainAndThereAreUpToSixtyFour) {
  WithOneRank([](annulus_comm_t* comm) {
    annulus_op_t first{}, op{};
    ASSERT_EQ(annulus_op_create_premul_sum(comm, 2, &first), ANNULUS_OK);
    ASSERT_EQ(first, 16);
    for (int i = 1; i < 64; ++i) ASSERT_EQ(annulus_op_create_premul_sum(comm, 2, &op), ANNULUS_OK);
    EXPECT_EQ(op, 16 + 63);
    EXPECT_EQ(annulus_op_create_premul_sum(comm, 2, &op), ANNULUS_INVALID_ARGUMENT);
    EXPECT_NE(LastMessage(comm).find("64 operations"), std::string::npos);
    // Slot 1 is free now, so the next number is the next one of slot 1.
    ASSERT_EQ(annulus_op_destroy(comm, static_cast<annulus_op_t>(17)), ANNULUS_OK);
    ASSERT_EQ(annulus_op_create(comm, ComposeLines, nullptr, nullptr, &op), ANNULUS_OK);
    EXPECT_EQ((op - 16) % 64, 1);
    EXPECT_GT(op, 16 + 63);
    EXPECT_EQ(Sum(comm, static_cast<annulus_op_t>(17)), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(Sum(comm, first), ANNULUS_OK);
    ASSERT_EQ(annulus_op_destroy(comm, first), ANNULUS_OK);
    EXPECT_EQ(annulus_op_destroy(comm, first), ANNULUS_INVALID_ARGUMENT);
  });
}

TEST(OperationsErrorsTest, FactorsMustFitIntegerTypes) {
  struct Case {
    double factor;
    std::vector<annulus_type_t> fits;
    std::vector<annulus_type_t> does_not;
  };
  const Case cases[] = {
      {0.5, {ANNULUS_FLOAT8_E4M3, ANNULUS_FLOAT32}, {ANNULUS_INT8, ANNULUS_UINT8, ANNULUS_INT64, ANNULUS_UINT64}},
      {-1, {ANNULUS_INT8, ANNULUS_INT32, ANNULUS_FLOAT64}, {ANNULUS_UINT8, ANNULUS_UINT32, ANNULUS_UINT64}},
      {128, {ANNULUS_UINT8, ANNULUS_INT32}, {ANNULUS_INT8}},
      {-128, {ANNULUS_INT8}, {ANNULUS_UINT8}},
      {256, {ANNULUS_INT32, ANNULUS_UINT32}, {ANNULUS_UINT8}},
      {4294967296.0, {ANNULUS_INT64, ANNULUS_UINT64}, {ANNULUS_INT32, ANNULUS_UINT32}},
      {9223372036854775808.0, {ANNULUS_UINT64}, {ANNULUS_INT64}},
      {18446744073709551616.0, {ANNULUS_FLOAT64}, {ANNULUS_UINT64}},
      {std::numeric_limits<double>::quiet_NaN(), {ANNULUS_FLOAT16}, {ANNULUS_INT32, ANNULUS_UINT8}},
      {std::numeric_limits<double>::infinity(), {ANNULUS_FLOAT16}, {ANNULUS_INT64, ANNULUS_UINT64}},
  };
  WithOneRank([&cases](annulus_comm_t* comm) {
    for (const Case& c : cases) {
      annulus_op_t op{};
      ASSERT_EQ(annulus_op_create_premul_sum(comm, c.factor, &op), ANNULUS_OK);
      for (annulus_type_t type : c.fits) EXPECT_EQ(Sum(comm, op, type), ANNULUS_OK) << c.factor << " " << type;
      for (annulus_type_t type : c.does_not) {
        EXPECT_EQ(Sum(comm, op, type), ANNULUS_INVALID_ARGUMENT) << c.factor << " " << type;
        EXPECT_NE(LastMessage(comm).find("factor"), std::string::npos) << LastMessage(comm);
      }
    }
  });
}

TEST(OperationsLifeTest, QueuedWorkOutlivesTheOperation) {
  ClusterConfig config;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    annulus_op_t op{};
    ASSERT_EQ(annulus_op_create_premul_sum(comm, 10 + rank, &op), ANNULUS_OK);
    std::vector<int32_t> input(100000, 1 + rank), output(input.size());
    annulus_request_t* request = nullptr;
    ASSERT_EQ(annulus_allreduce_async(comm, input.data(), output.data(), input.size(), ANNULUS_INT32, op, &request),
              ANNULUS_OK);
    ASSERT_EQ(annulus_op_destroy(comm, op), ANNULUS_OK);
    EXPECT_EQ(Sum(comm, op), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    EXPECT_EQ(output, std::vector<int32_t>(input.size(), 1 * 10 + 2 * 11));
  });
}

TEST(OperationsGroupTest, EachOperationOfAGroupIsDoneByItself) {
  ClusterConfig config;
  config.nranks = 3;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    annulus_op_t scaled{}, twice{}, lines{};
    ASSERT_EQ(annulus_op_create_premul_sum(comm, rank, &scaled), ANNULUS_OK);
    ASSERT_EQ(annulus_op_create_premul_sum(comm, 2, &twice), ANNULUS_OK);
    ASSERT_EQ(annulus_op_create(comm, ComposeLines, nullptr, nullptr, &lines), ANNULUS_OK);
    const annulus_op_t ops[] = {scaled, ANNULUS_SUM, lines, scaled, twice, lines};
    const uint32_t line = uint32_t{3} << 16 | static_cast<uint32_t>(rank);
    std::vector<std::vector<uint32_t>> tensors;
    for (size_t t = 0; t < std::size(ops); ++t) tensors.emplace_back(t * 700 + 3, ops[t] == lines ? line : 10);
    annulus_request_t* all = nullptr;
    Calls calls;
    for (size_t t = 0; t < std::size(ops); ++t) {
      calls.Allreduce(tensors[t].data(), tensors[t].data(), tensors[t].size(), ANNULUS_UINT32, ops[t]);
    }
    ASSERT_EQ(calls.Submit(comm, &all), ANNULUS_OK);
    ASSERT_EQ(annulus_request_wait(all, -1), ANNULUS_OK);
    annulus_request_free(all);
    for (size_t t : {0, 3}) EXPECT_EQ(tensors[t], std::vector<uint32_t>(tensors[t].size(), 10 * (0 + 1 + 2)));
    EXPECT_EQ(tensors[1], std::vector<uint32_t>(tensors[1].size(), 30));
    EXPECT_EQ(tensors[4], std::vector<uint32_t>(tensors[4].size(), 60));
    for (size_t t : {2, 5}) {
      // Chunk 0 belongs to ranks 1, 2, 0: x -> 3 (3 (3 x + 0) + 2) + 1.
      EXPECT_EQ(tensors[t].front(), uint32_t{27} << 16 | 7);
      // Chunk 2 belongs to ranks 0, 1, 2: x -> 3 (3 (3 x + 2) + 1) + 0.
      EXPECT_EQ(tensors[t].back(), uint32_t{27} << 16 | 21);
    }
  });
}

}  // namespace
}  // namespace annulus
