// The shared memory limit of bench/peers really sums: every size, way and number of ranks, one call after the other.
//
// Threads: one per rank, in place of processes.
#include "bench/peers/exchange.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace annulus::peers {
namespace {

constexpr size_t kMostFloats = 150'000;

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<float[], Free>;

Buffer MakeBuffer() {
  constexpr size_t kLineBytes = 64;
  const size_t bytes = (kMostFloats * sizeof(float) + kLineBytes - 1) / kLineBytes * kLineBytes;
  return Buffer(static_cast<float*>(std::aligned_alloc(kLineBytes, bytes)));
}

// Small whole numbers: their sums are exact.
float Input(int rank, size_t i) { return static_cast<float>(static_cast<size_t>(rank) + i % 251); }

// Returns the number of wrong elements of one rank's call.
size_t CountWrong(Exchange& exchange, int rank, int nranks, size_t count, Exchange::Way way, bool in_place) {
  const Buffer send = MakeBuffer(), other = MakeBuffer();
  float* const recv = in_place ? send.get() : other.get();
  for (size_t i = 0; i < count; ++i) send[i] = Input(rank, i);
  if (!exchange.Allreduce(send.get(), recv, count, way).ok()) return count + 1;
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    float expected = 0;
    for (int each = 0; each < nranks; ++each) expected += Input(each, i);
    wrong += recv[i] != expected;
  }
  return wrong;
}

// All calls of one rank, in the order that all ranks share.
void RunRank(const std::string& path, int rank, int nranks, size_t* wrong) {
  Exchange exchange;
  const Status opened = Exchange::Open(path, rank, nranks, &exchange);
  ASSERT_TRUE(opened.ok()) << opened.ToString();
  const std::vector<Exchange::Way> ways = {
      {true, {}},  {true, {false, true}},  {true, {}, true},      {true, {}},
      {false, {}}, {false, {true, false}}, {false, {true, true}}, {false, {}, true},
      {false, {}}};
  for (const size_t count :
       {size_t{1}, size_t{2}, size_t{17}, size_t{1000}, size_t{16384}, size_t{16385}, kMostFloats}) {
    for (const Exchange::Way& way : ways) {
      if (way.one_hop && count * sizeof(float) > Exchange::kOneHopBytes) continue;
      *wrong += CountWrong(exchange, rank, nranks, count, way, false);
      *wrong += CountWrong(exchange, rank, nranks, count, way, true);
    }
    EXPECT_TRUE(exchange.Barrier().ok());
  }
}

class ExchangeTest : public testing::TestWithParam<int> {};

TEST_P(ExchangeTest, SumsOverAllRanksInEveryWay) {
  const int nranks = GetParam();
  const int file = memfd_create("exchange", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  std::vector<size_t> wrong(static_cast<size_t>(nranks), 0);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < nranks; ++rank) {
    ranks.emplace_back([&, rank] { RunRank(path, rank, nranks, &wrong[static_cast<size_t>(rank)]); });
  }
  for (std::thread& rank : ranks) rank.join();
  close(file);
  EXPECT_EQ(wrong, std::vector<size_t>(static_cast<size_t>(nranks), 0));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExchangeTest, testing::Values(1, 2, 3, 4));

TEST(ExchangeOpenTest, AFileThatIsNotThereIsAnError) {
  Exchange exchange;
  EXPECT_FALSE(Exchange::Open("/nonexistent/file", 0, 2, &exchange).ok());
}

TEST(ExchangeOpenTest, MoreRanksThanItHasRoomForAreRefused) {
  Exchange exchange;
  EXPECT_FALSE(Exchange::Open("/dev/null", 0, Exchange::kMaxRanks + 1, &exchange).ok());
}

}  // namespace
}  // namespace annulus::peers
