// Group: which calls go together, and which must not.
#include "collectives/calls/group.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>

namespace annulus {
namespace {

using Bundle = std::vector<Request*>;

class GroupTest : public ::testing::Test {
 protected:
  // An allreduce of `count` floats from `in` to `out`.
  Request* Allreduce(size_t count, float* in, float* out) {
    Request& request = requests_.emplace_back();
    request.arguments.kind = CollectiveKind::kAllreduce;
    request.arguments.count = count;
    request.arguments.sendbuf = in;
    request.arguments.recvbuf = out;
    return &request;
  }
  Request* Allreduce(size_t count = 1) {
    const size_t place = requests_.size() % (memory_.size() / 16) * 16;
    return Allreduce(count, &memory_[place], &memory_[place]);
  }

  static bool Never(const CallArguments&) { return false; }

  std::deque<Request> requests_;
  std::array<float, 256> memory_{};
};

TEST_F(GroupTest, AllreducesAlikeGoTogetherInTheOrderOfTheFirstOfEach) {
  Request* const a = Allreduce();
  Request* const b = Allreduce();
  b->arguments.op = ReduceOp::kMax;
  Request* const c = Allreduce(7);
  Request* const d = Allreduce();
  d->arguments.type = DataType::kFloat64;
  Request* const e = Allreduce();
  e->arguments.op = ReduceOp::kMax;
  EXPECT_EQ(Bundles({a, b, c, d, e}, Never), (std::vector<Bundle>{{a, c}, {b, e}, {d}}));
}

TEST_F(GroupTest, OtherCollectivesGoAlone) {
  Request* const a = Allreduce();
  a->arguments.kind = CollectiveKind::kBroadcast;
  Request* const b = Allreduce();
  b->arguments.kind = CollectiveKind::kBroadcast;
  EXPECT_EQ(Bundles({a, b}, Never), (std::vector<Bundle>{{a}, {b}}));
}

TEST_F(GroupTest, PrioritiesAndCreatedOperationsSetCallsApart) {
  Request* const a = Allreduce();
  Request* const b = Allreduce();
  b->options.priority = 1;
  Request* const c = Allreduce();
  c->arguments.created_op = 16;
  EXPECT_EQ(Bundles({a, b, c}, Never), (std::vector<Bundle>{{a}, {b}, {c}}));
}

TEST_F(GroupTest, CallsThatAddInAnotherOrderGoApart) {
  Request* const a = Allreduce(1);
  Request* const b = Allreduce(8);
  Request* const c = Allreduce(2);
  const auto large = [](const CallArguments& arguments) { return arguments.count >= 8; };
  EXPECT_EQ(Bundles({a, b, c}, large), (std::vector<Bundle>{{a, c}, {b}}));
}

TEST_F(GroupTest, CallsInPlaceOnTheirOwnMemoryAreIndependent) {
  EXPECT_TRUE(AreIndependent({Allreduce(8, &memory_[0], &memory_[0]), Allreduce(8, &memory_[8], &memory_[8])}));
}

TEST_F(GroupTest, CallsThatReadTheSameAreIndependent) {
  EXPECT_TRUE(AreIndependent({Allreduce(8, &memory_[0], &memory_[8]), Allreduce(8, &memory_[0], &memory_[16])}));
}

TEST_F(GroupTest, OneThatReadsWhatAnotherWritesIsNotIndependent) {
  EXPECT_FALSE(AreIndependent({Allreduce(8, &memory_[0], &memory_[16]), Allreduce(8, &memory_[23], &memory_[40])}));
  EXPECT_TRUE(AreIndependent({Allreduce(8, &memory_[0], &memory_[16]), Allreduce(8, &memory_[24], &memory_[40])}));
}

TEST_F(GroupTest, CallsOfNothingAreIndependent) {
  EXPECT_TRUE(AreIndependent({Allreduce(0, &memory_[0], &memory_[0]), Allreduce(8, &memory_[0], &memory_[0])}));
}

}  // namespace
}  // namespace annulus
