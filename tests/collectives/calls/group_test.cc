// Group: which calls go together, and which must not.
#include "collectives/calls/group.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <string>
#include <utility>

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

// Calls that have no requests yet.
class AlikeTest : public testing::Test {
 protected:
  AlikeTest() {
    for (size_t i = 0; i < calls_.size(); ++i) {
      calls_[i].kind = CollectiveKind::kAllreduce;
      calls_[i].count = 4;
      calls_[i].sendbuf = calls_[i].recvbuf = &memory_[4 * i];
      calls_[i].options = &options_[i];
    }
  }

  std::array<float, 16> memory_{};
  std::array<CallOptions, 3> options_;
  std::array<CallArguments, 3> calls_;
};

TEST_F(AlikeTest, AllreducesOfOneTypeAndOperationAreAlike) {
  calls_[1].count = 1;
  calls_[2].options = nullptr;
  EXPECT_TRUE(AreAlike(calls_));
  calls_[1].type = DataType::kInt32;
  EXPECT_FALSE(AreAlike(calls_));
  calls_[1].type = calls_[0].type;
  calls_[2].op = ReduceOp::kMax;
  EXPECT_FALSE(AreAlike(calls_));
}

TEST_F(AlikeTest, OtherCollectivesAreNot) {
  for (CallArguments& call : calls_) call.kind = CollectiveKind::kAllgather;
  EXPECT_FALSE(AreAlike(calls_));
}

TEST_F(AlikeTest, LabelsAndDeadlinesMayBeCommon) {
  const std::string another = "gradients";
  for (CallOptions& options : options_) {
    options.label = "gradients";
    options.timeout = kSecond;
  }
  options_[1].label = another.c_str();
  EXPECT_TRUE(AreAlike(calls_));
  options_[1].label = "others";
  EXPECT_FALSE(AreAlike(calls_));
  options_[1].label = nullptr;
  EXPECT_FALSE(AreAlike(calls_));
  options_[1].label = another.c_str();
  options_[2].timeout = 2 * kSecond;
  EXPECT_FALSE(AreAlike(calls_));
}

TEST_F(AlikeTest, WhatConcernsOneCallSetsItApart) {
  for (const auto set : std::vector<void (*)(CallOptions*)>{
           [](CallOptions* o) { o->priority = 1; }, [](CallOptions* o) { o->agree_first = true; },
           [](CallOptions* o) { o->on_stream = true; }, [](CallOptions* o) { o->done = [](void*, auto) {}; }}) {
    set(&options_[1]);
    EXPECT_FALSE(AreAlike(calls_));
    options_[1] = CallOptions();
  }
  EXPECT_TRUE(AreAlike(calls_));
}

TEST_F(AlikeTest, IndependenceIsThatOfRequests) {
  EXPECT_TRUE(AreIndependent(calls_));
  std::swap(calls_[0].recvbuf, calls_[2].recvbuf);
  EXPECT_FALSE(AreIndependent(calls_));
  calls_[0].recvbuf = &memory_[12];
  calls_[1].sendbuf = &memory_[0];
  calls_[2].recvbuf = &memory_[8];
  EXPECT_TRUE(AreIndependent(calls_)) << "two read the same";
  calls_[2].count = 5;
  EXPECT_FALSE(AreIndependent(calls_)) << "one writes into what another writes";
}

}  // namespace
}  // namespace annulus
