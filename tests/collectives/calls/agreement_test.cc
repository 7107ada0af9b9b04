// What ranks conclude from the descriptions of their calls, over seeded calls and changes to them.
#include "collectives/calls/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace annulus {
namespace {

using Counts = std::vector<size_t>;

// The calls of one rank, with their arrays.
struct Group {
  std::vector<CallArguments> calls;
  std::vector<Counts> send;
  std::vector<Counts> recv;

  CallDescription Describe(int rank, int nranks) {
    for (size_t i = 0; i < calls.size(); ++i) {
      calls[i].send_layout.counts = send[i].data();
      calls[i].recv_layout.counts = recv[i].data();
    }
    return annulus::Describe(calls, std::vector<size_t>(calls.size()), rank, nranks);
  }
};

Status Conclude(const std::vector<CallDescription>& all) {
  std::vector<size_t> numbers((all.size() + 1) * kDescriptionWords);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Put(all[rank], std::span(numbers).subspan((rank + 1) * kDescriptionWords));
  }
  return CheckAgreement(numbers, static_cast<int>(all.size()), 7);
}

std::vector<CallDescription> DescribeAll(std::vector<Group>* groups) {
  std::vector<CallDescription> all;
  for (size_t rank = 0; rank < groups->size(); ++rank) {
    all.push_back((*groups)[rank].Describe(static_cast<int>(rank), static_cast<int>(groups->size())));
  }
  return all;
}

// Matching calls of all ranks, of every kind.
std::vector<Group> MakeGroups(std::mt19937* random, size_t nranks, size_t ncalls) {
  std::vector<Group> groups(nranks);
  for (size_t i = 0; i < ncalls; ++i) {
    CallArguments a;
    a.kind = static_cast<CollectiveKind>(1 + (*random)() % 14);
    a.type = static_cast<DataType>((*random)() % kNumDataTypes);
    a.op = ReduceOp::kMax;
    a.root = static_cast<int>((*random)() % nranks);
    a.count = (*random)() % 100;
    std::vector<Counts> matrix(nranks, Counts(nranks));  // By sender.
    for (Counts& row : matrix) {
      for (size_t& count : row) count = (*random)() % 50;
    }
    for (size_t rank = 0; rank < nranks; ++rank) {
      Counts column;
      for (const Counts& row : matrix) column.push_back(row[rank]);
      CallArguments own = a;
      if (a.kind == CollectiveKind::kGatherv) own.count = matrix[rank][a.root];
      if (a.kind == CollectiveKind::kScatterv) own.count = matrix[a.root][rank];
      const bool same_on_all = a.kind == CollectiveKind::kAllgatherv || a.kind == CollectiveKind::kReduceScatterv;
      groups[rank].calls.push_back(own);
      groups[rank].send.push_back(same_on_all ? matrix[0] : matrix[rank]);
      groups[rank].recv.push_back(same_on_all ? matrix[0] : column);
    }
  }
  return groups;
}

TEST(AgreementTest, CallsThatMatchAgree) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<Group> groups = MakeGroups(&random, 1 + random() % 9, 1 + random() % 20);
    const Status status = Conclude(DescribeAll(&groups));
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

// Changes one call, and returns whether ranks can disagree about that.
bool Change(std::mt19937* random, Group* group, size_t rank, size_t nranks, size_t index) {
  CallArguments& a = group->calls[index];
  if (a.kind == CollectiveKind::kBarrier) {
    a.kind = CollectiveKind::kAllreduce;
    return true;
  }
  switch ((*random)() % 4) {
    case 0:
      a.type = a.type == DataType::kInt8 ? DataType::kInt64 : DataType::kInt8;
      return true;
    case 1:
      a.op = ReduceOp::kMin;
      return Reduces(a.kind);
    case 2:
      a.root = (a.root + 1) % static_cast<int>(nranks);
      return HasRoot(a.kind) && nranks > 1;
    default:
      break;
  }
  const bool at_root = static_cast<int>(rank) == a.root;
  if (!HasVariableParts(a.kind) || (HasRoot(a.kind) && !at_root)) {
    ++a.count;
    return !HasVariableParts(a.kind) || IsDirect(a.kind);
  }
  const bool receives = IsGather(a.kind) || IsAllgather(a.kind);
  (receives ? group->recv : group->send)[index][(*random)() % nranks] += 1 + (*random)() % 3;
  return true;
}

TEST(AgreementTest, AnyChangeToOneCallOfOneRankIsFound) {
  std::mt19937 random(2);
  int found = 0;
  for (int i = 0; i < 4000; ++i) {
    const size_t nranks = 2 + random() % 6;
    const size_t ncalls = 1 + random() % 20;
    std::vector<Group> groups = MakeGroups(&random, nranks, ncalls);
    const size_t odd = random() % nranks;
    const size_t index = random() % ncalls;
    if (!Change(&random, &groups[odd], odd, nranks, index)) continue;
    ++found;
    const Status status = Conclude(DescribeAll(&groups));
    ASSERT_EQ(status.code(), Code::kMismatch) << KindName(groups[odd].calls[index].kind);
    ASSERT_FALSE(status.message().empty());
  }
  EXPECT_GT(found, 2000);
}

TEST(AgreementTest, TheOnlyPairThatDoesNotMatchIsNamed) {
  std::mt19937 random(3);
  for (int i = 0; i < 1000; ++i) {
    const size_t nranks = 2 + random() % 6;
    std::vector<Group> groups = MakeGroups(&random, nranks, 1 + random() % 5);
    const size_t index = random() % groups[0].calls.size();
    for (Group& group : groups) group.calls[index].kind = CollectiveKind::kAlltoallv;
    for (size_t from = 0; from < nranks; ++from) {
      for (size_t to = 0; to < nranks; ++to) groups[to].recv[index][from] = groups[from].send[index][to];
    }
    const size_t from = random() % nranks;
    const size_t to = random() % nranks;
    const bool more = random() % 2 == 0;
    const size_t huge = size_t{1} << (random() % 40);
    (more ? groups[from].send[index][to] : groups[to].recv[index][from]) += huge;
    const std::string expected = "rank " + std::to_string(from) + " sends rank " + std::to_string(to) + " " +
                                 std::to_string(huge) + (huge == 1 ? " element " : " elements ") +
                                 (more ? "more" : "fewer") + " than that expects in ";
    const Status status = Conclude(DescribeAll(&groups));
    ASSERT_EQ(status.message().substr(0, expected.size()), expected) << status.message();
  }
}

CallArguments Allgatherv() {
  CallArguments a;
  a.kind = CollectiveKind::kAllgatherv;
  return a;
}

// What the ranks conclude where all but `odd` call an allgatherv with the same counts.
Status ConcludeCounts(size_t nranks, size_t odd, const Counts& usual, const Counts& other) {
  std::vector<Group> groups(nranks);
  for (size_t rank = 0; rank < nranks; ++rank) {
    groups[rank].calls = {Allgatherv()};
    groups[rank].send = groups[rank].recv = {rank == odd ? other : usual};
  }
  return Conclude(DescribeAll(&groups));
}

TEST(AgreementTest, ACountThatDiffersIsNamed) {
  std::mt19937 random(5);
  int unknown = 0;
  for (size_t nranks = 3; nranks <= 20; ++nranks) {
    for (size_t index = 0; index < nranks; ++index) {
      Counts usual(nranks);
      for (size_t& count : usual) count = random() % 50;
      Counts other = usual;
      other[index] += 1 + random() % 3;
      const Status status = ConcludeCounts(nranks, random() % nranks, usual, other);
      const std::string& text = status.message();
      EXPECT_NE(text.find(" called allgatherv #7 with counts for "), std::string::npos) << text;
      const size_t at = text.find("; they differ in ");
      if (at == std::string::npos) {  // One in 256, by chance.
        ++unknown;
        continue;
      }
      unsigned first = 0;
      unsigned last = 0;
      const std::string where = text.substr(at);
      if (std::sscanf(where.c_str(), "; they differ in counts[%u] to counts[%u]", &first, &last) != 2) {
        ASSERT_EQ(std::sscanf(where.c_str(), "; they differ in counts[%u]", &first), 1) << text;
        last = first;
      }
      EXPECT_TRUE(first <= index && index <= last && last - first <= nranks / 8) << text << ", index " << index;
    }
  }
  EXPECT_LT(unknown, 5);
  EXPECT_EQ(ConcludeCounts(3, 2, {5, 6, 7}, {5, 7, 6}).message(),
            "rank 2 called allgatherv #7 with other counts than the others, though of the same sum; they differ "
            "in counts[1]");
}

TEST(AgreementTest, CountsInAnyOtherOrderHaveAnotherDigest) {
  Counts counts(7);
  std::iota(counts.begin(), counts.end(), 0);
  std::set<int32_t> digests;
  size_t orders = 0;
  do {
    CallArguments a = Allgatherv();
    a.recv_layout.counts = counts.data();
    const Call call = CallOf(a, static_cast<int>(counts.size()), 1);
    EXPECT_EQ(call.count, 21u);
    digests.insert(call.root);
    ++orders;
  } while (std::ranges::next_permutation(counts).found);
  EXPECT_EQ(digests.size(), orders);
  EXPECT_GE(*digests.begin(), 0);
}

TEST(AgreementTest, OtherPrioritiesAreNamed) {
  CallOptions options;
  options.priority = 1;
  std::vector<Group> groups(3);
  for (Group& group : groups) {
    group.calls = {Allgatherv()};
    group.send = group.recv = {{1, 2, 3}};
  }
  groups[1].calls[0].options = &options;
  EXPECT_EQ(Conclude(DescribeAll(&groups)).message(),
            "rank 1 called allgatherv #7 with another priority than the others");
}

TEST(AgreementTest, RefusalsComeBeforeDifferencesAndNameTheirRanks) {
  std::vector<CallDescription> all(5);
  for (size_t rank = 0; rank < all.size(); ++rank) all[rank].count = rank;
  all[2] = all[4] = DescribeRefusal(Code::kInvalidArgument, CollectiveKind::kReduce, 1);
  all[3] = DescribeRefusal(Code::kUnsupported, CollectiveKind::kReduce, 1);
  EXPECT_EQ(Conclude(all).message(), "ranks 2 and 4 refused reduce #7 (invalid argument)");
  EXPECT_EQ(Conclude(all).peer(), 2);
  for (CallDescription& each : all) each = DescribeRefusal(Code::kUnsupported, CollectiveKind::kReduce, 3);
  EXPECT_EQ(Conclude(all).message(), "ranks 0, 1, 2, 3 and 4 refused group #7 (unsupported)");
}

TEST(AgreementTest, TheMinorityIsToBlameAndBetweenEqualPartiesTheOneWithTheHighestRank) {
  std::mt19937 random(4);
  std::vector<Group> groups = MakeGroups(&random, 4, 1);
  for (Group& group : groups) group.calls[0].kind = CollectiveKind::kAllreduce;
  for (const size_t odd : {1, 2}) groups[odd].calls[0].count = 1000;
  const std::string usual = std::to_string(groups[0].calls[0].count);
  EXPECT_EQ(Conclude(DescribeAll(&groups)).message(),
            "ranks 0 and 3 called allreduce #7 with count " + usual + ", the others with count 1000");
  groups[2].calls[0].count = groups[0].calls[0].count;
  EXPECT_EQ(Conclude(DescribeAll(&groups)).message(),
            "rank 1 called allreduce #7 with count 1000, the others with count " + usual);
}

}  // namespace
}  // namespace annulus
