// The job key: no copy of it is left in memory when the communicators are destroyed.
#include <annulus.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>  // explicit_bzero
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tests/collectives/harness/calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

// A random key that is kept in disguise, so that the test itself does not hold what it looks for.
class DisguisedKey {
 public:
  static constexpr size_t kBytes = 40;

  DisguisedKey() {
    std::random_device random;
    for (char& c : disguised_) c = static_cast<char>(('a' + random() % 26) ^ kMask);
  }
  void Reveal(std::array<char, kBytes + 1>* key) const {
    for (size_t i = 0; i < kBytes; ++i) (*key)[i] = Plain(i);
    (*key)[kBytes] = '\0';
  }
  // How often the key's second half occurs in `bytes`: the allocator overwrites the beginning of what is freed.
  int CountIn(const std::vector<char>& bytes) const {
    constexpr size_t kHalf = kBytes / 2;
    int found = 0;
    for (size_t at = 0; at + kHalf <= bytes.size(); ++at) {
      size_t same = 0;
      while (same < kHalf && bytes[at + same] == Plain(kHalf + same)) ++same;
      found += same == kHalf ? 1 : 0;
    }
    return found;
  }

 private:
  static constexpr char kMask = 0x55;
  char Plain(size_t i) const { return static_cast<char>(disguised_[i] ^ kMask); }
  char disguised_[kBytes];
};

// How often the key occurs in the heap and the other small private memory of this process that can be written.
int CountInMemory(const DisguisedKey& key) {
  constexpr uint64_t kMostBytes = 256 << 20;  // More is only reserved.
  const int memory = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  EXPECT_GE(memory, 0);
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int found = 0;
  std::vector<char> bytes;
  while (std::getline(maps, line)) {
    uint64_t begin = 0;
    uint64_t end = 0;
    char flags[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, flags) != 3) continue;
    if (flags[0] != 'r' || flags[1] != 'w' || flags[3] != 'p' || end - begin > kMostBytes) continue;
    bytes.resize(end - begin);
    const ssize_t read = ::pread(memory, bytes.data(), bytes.size(), static_cast<off_t>(begin));
    bytes.resize(read > 0 ? static_cast<size_t>(read) : 0);
    found += key.CountIn(bytes);
    explicit_bzero(bytes.data(), bytes.size());
  }
  ::close(memory);
  return found;
}

TEST(JobKeyTest, IsNowhereInMemoryOnceTheCommunicatorsAreDestroyed) {
  const DisguisedKey key;
  const TestPort port;
  const std::string address = port.address();
  ForEachRank(2, [&](int rank) {
    annulus_config_t config;
    ASSERT_EQ(annulus_config_init(&config, sizeof config, 0), ANNULUS_OK);
    std::array<char, DisguisedKey::kBytes + 1> revealed;
    key.Reveal(&revealed);
    config.rank = rank;
    config.size = 2;
    config.rendezvous = address.c_str();
    config.job_key = revealed.data();
    annulus_comm_t* comm = nullptr;
    annulus_comm_t* copy = nullptr;
    ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
    explicit_bzero(revealed.data(), revealed.size());
    ASSERT_EQ(annulus_comm_dup(comm, &copy), ANNULUS_OK);
    ASSERT_EQ(annulus_barrier(copy), ANNULUS_OK);
    if (rank == 0) {
      EXPECT_GT(CountInMemory(key), 0) << "the test finds nothing, even where there is something";
    }
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_destroy(copy), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
  });
  EXPECT_EQ(CountInMemory(key), 0);
}

}  // namespace
}  // namespace annulus
