// Every collective, type and operation through the C API, over real transports, against the oracle, bit for bit.

#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/collectives/harness/c_call.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/links_fixture.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

enum class Form { kOutOfPlace, kInPlace, kAsync };

// What the ranks of a job need for each of its calls, which all make in one order: the inputs of all ranks, and the
// output where all have the same. Made once, by the rank that comes first: to make it takes far longer than the call.
class Calls {
 public:
  struct Material {
    std::vector<Bytes> inputs;
    Bytes output_of_all;  // Output of an allreduce.
  };

  explicit Calls(int nranks) : taken_(nranks) {}

  // The next call of this rank.
  std::shared_ptr<const Material> Next(const Call& call, int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t index = taken_[rank]++;
    std::shared_ptr<const Material>& kept = kept_[index];
    if (kept == nullptr) kept = Make(call);
    const std::shared_ptr<const Material> material = kept;
    if (*std::min_element(taken_.begin(), taken_.end()) > index) kept_.erase(index);
    return material;
  }

 private:
  std::shared_ptr<const Material> Make(const Call& call) const {
    const int n = static_cast<int>(taken_.size());
    auto made = std::make_shared<Material>();
    for (int r = 0; r < n; ++r) made->inputs.push_back(MakeInput(call.type, InputElements(call, n), r, call.count + 1));
    if (call.kind == CollectiveKind::kAllreduce) made->output_of_all = ExpectedOutput(call, made->inputs, 0);
    return made;
  }

  std::mutex mutex_;
  std::vector<size_t> taken_;  // Calls, by rank.
  std::map<size_t, std::shared_ptr<const Material>> kept_;
};

// Runs `call` on `rank`, with its buffers in `memory`, and compares with the oracle.
void RunAndCheck(annulus_comm_t* comm, const UserMemory& memory, const Call& call, const Calls::Material& material,
                 int rank, Form form) {
  const std::vector<Bytes>& inputs = material.inputs;
  const int n = static_cast<int>(inputs.size());
  const size_t element = TypeBytes(call.type);
  const bool same_for_all = call.kind == CollectiveKind::kAllreduce;
  const Bytes expected = same_for_all ? material.output_of_all : ExpectedOutput(call, inputs, rank);
  const Bytes& input = inputs[rank];
  Bytes output(OutputElements(call, n) * element, std::byte{0xcd});
  const bool in_output = form == Form::kInPlace && call.kind == CollectiveKind::kAllgather;
  const bool in_input = form == Form::kInPlace && !in_output;
  if (in_output) std::copy(input.begin(), input.end(), output.begin() + input.size() * rank);
  const UserBytes in_buffer = memory.Input(input);
  const UserBytes out_buffer = memory.Output(output);
  const size_t out_begin = in_input && call.kind == CollectiveKind::kReduceScatter ? output.size() * rank : 0;
  std::byte* const in = in_output ? out_buffer.data() + input.size() * rank : in_buffer.data();
  std::byte* const out = in_input ? in_buffer.data() + out_begin : out_buffer.data();
  if (form == Form::kAsync) {
    annulus_request_t* request = nullptr;
    ASSERT_EQ(SubmitCall(comm, call, in, out, &request), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
  } else {
    annulus_error_t error{};
    error.struct_bytes = sizeof error;
    const annulus_status_t status = RunCall(comm, call, in, out);
    if (status != ANNULUS_OK) annulus_last_error(&error);
    ASSERT_EQ(status, ANNULUS_OK) << (error.message != nullptr ? error.message : "");
  }
  if (!expected.empty()) {
    const UserBytes& result = in_input ? in_buffer : out_buffer;
    ASSERT_TRUE(SameBits(result.Read(out_begin, expected.size()), expected)) << "wrong result at rank " << rank;
  }
  if (form != Form::kInPlace) {
    ASSERT_TRUE(SameBits(in_buffer.Read(), input)) << "the input was touched";
  }
}

void CheckCall(annulus_comm_t* comm, const UserMemory& memory, Calls* calls, const Call& call, int rank, int n,
               Form form) {
  SCOPED_TRACE(testing::Message() << KindName(call.kind) << " " << TypeName(call.type) << " " << OpName(call.op)
                                  << " count " << call.count << " root " << call.root << " n " << n << " form "
                                  << static_cast<int>(form));
  RunAndCheck(comm, memory, call, *calls->Next(call, rank), rank, form);
}

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllreduce, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
                                     CollectiveKind::kReduce,    CollectiveKind::kBarrier};

// Neither races nor wrong accesses depend on the type of the elements, but for those of the reducer, which has tests of
// its own, nor, beyond a few slices, on their number. The oracle takes most of the time under a sanitizer.
constexpr int kTypeStep = kSanitized ? 5 : 1;
constexpr size_t kLargeCount = kSanitized ? 100001 : 600001;
constexpr size_t kMediumCount = kSanitized ? 5000 : 20000;  // More than ANNULUS_SMALL_BYTES of four bytes each.

class CollectivesTest : public LinksTest {
 protected:
  // All types on host memory. Which memory a device's buffers are copied to and from does not depend on them either,
  // and its kernels have tests of their own: of three kinds of device memory, each takes other types.
  int TypeStep() const { return kSanitized ? kTypeStep : std::string(std::get<2>(GetParam())) == "host" ? 1 : 3; }
  int FirstType() const {
    const std::string memory = std::get<2>(GetParam());
    return TypeStep() == 3 ? static_cast<int>(memory.size() + n()) % 3 : 0;
  }
};

TEST_P(CollectivesTest, EveryTypeAndOperationGivesTheOraclesBits) {
  const ClusterConfig c = config();
  Calls calls(c.nranks);
  const Cluster cluster(c);
  cluster.Run([&](annulus_comm_t* comm, int rank) {
    for (CollectiveKind kind : kKinds) {
      for (int type = FirstType(); type < kNumDataTypes; type += TypeStep()) {
        for (int op = 0; op < kNumReduceOps; ++op) {
          Call call;
          call.kind = kind;
          call.type = static_cast<DataType>(type);
          call.op = static_cast<ReduceOp>(op);
          if (!CanReduce(call.type, call.op)) continue;
          call.root = (type + op) % c.nranks;
          for (size_t count : {size_t{3}, kMediumCount}) {
            call.count = count;
            CheckCall(comm, cluster.memory(rank), &calls, call, rank, c.nranks, Form::kOutOfPlace);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

TEST_P(CollectivesTest, EverySizeAroundTheBoundariesInEveryForm) {
  ClusterConfig c = config();
  c.slice_bytes = 4096;
  c.small_bytes = 2048;
  Calls calls(c.nranks);
  const Cluster cluster(c);
  cluster.Run([&](annulus_comm_t* comm, int rank) {
    const size_t n = c.nranks;
    for (Form form : {Form::kOutOfPlace, Form::kInPlace, Form::kAsync}) {
      for (CollectiveKind kind : kKinds) {
        for (size_t count : {size_t{0}, size_t{1}, n - 1, n + 1, size_t{512}, size_t{513}, size_t{1024},
                             4 * n * 1024 - 1, 4 * n * 1024 + 1, 9 * n * 1024 + 7}) {
          Call call;
          call.kind = kind;
          call.count = count;
          call.root = static_cast<int>(count % n);
          CheckCall(comm, cluster.memory(rank), &calls, call, rank, c.nranks, form);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

class HostCollectivesTest : public LinksTest {};

TEST_P(HostCollectivesTest, BuffersThatARankDoesNotUseMayBeNull) {
  const ClusterConfig c = config();
  Cluster(c).Run([&c](annulus_comm_t* comm, int rank) {
    for (size_t count : {size_t{3}, size_t{500000}}) {
      std::vector<float> values(count, static_cast<float>(rank + 1));
      const bool root = rank == 0;
      std::vector<float> out(count);
      ASSERT_EQ(
          annulus_reduce(comm, values.data(), root ? out.data() : nullptr, count, ANNULUS_FLOAT32, ANNULUS_SUM, 0),
          ANNULUS_OK);
      ASSERT_EQ(annulus_broadcast(comm, root ? out.data() : nullptr, out.data(), count, ANNULUS_FLOAT32, 0),
                ANNULUS_OK);
      EXPECT_EQ(out, std::vector<float>(count, static_cast<float>(c.nranks * (c.nranks + 1) / 2)));
      std::vector<float> all(root ? count * c.nranks : 0);
      ASSERT_EQ(annulus_gather(comm, values.data(), root ? all.data() : nullptr, count, ANNULUS_FLOAT32, 0),
                ANNULUS_OK);
      ASSERT_EQ(annulus_scatter(comm, root ? all.data() : nullptr, out.data(), count, ANNULUS_FLOAT32, 0), ANNULUS_OK);
      EXPECT_EQ(out, values);
    }
  });
}

TEST_P(CollectivesTest, LargeMessagesAreRight) {
  const ClusterConfig c = config();
  Calls calls(c.nranks);
  const Cluster cluster(c);
  cluster.Run([&](annulus_comm_t* comm, int rank) {
    for (CollectiveKind kind : kKinds) {
      Call call;
      call.kind = kind;
      call.count = kLargeCount;
      CheckCall(comm, cluster.memory(rank), &calls, call, rank, c.nranks, Form::kOutOfPlace);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Links, CollectivesTest, OverLinks(1, 2, 3, 4, 5), LinksName);
INSTANTIATE_TEST_SUITE_P(SimLinks, CollectivesTest, OverSimLinks(3), LinksName);
INSTANTIATE_TEST_SUITE_P(MixedLinks, CollectivesTest, OverMixedLinks(2), LinksName);
INSTANTIATE_TEST_SUITE_P(Links, HostCollectivesTest, OverLinks(1, 2, 3, 4, 5), LinksName);

}  // namespace
}  // namespace annulus
