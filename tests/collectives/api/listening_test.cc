// Rank 0 listens at a port that the kernel chooses and tells the program: annulus_config_t's `listening`. Also
// processes that meet through a store.
//
// Threads: one per rank. The test of processes forks while there is no other thread.

#include <annulus.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "tests/collectives/api/store_fixture.h"

namespace annulus {
namespace {

// Rank 0 passes its address on by hand.
struct Handed {
  std::promise<std::string> address;
  int outcome = 0;
};

int32_t HandOver(void* context, const char* address) {
  auto* const handed = static_cast<Handed*>(context);
  handed->address.set_value(address);
  return handed->outcome;
}

TEST(ListeningTest, RankZeroTellsWhereItListens) {
  Handed handed;
  std::shared_future<std::string> address = handed.address.get_future().share();
  ForEachRank(3, [&](int rank) {
    UserConfig config = Config(rank, 3, nullptr);
    config.job_key = "a key of enough characters";
    config.listening = HandOver;
    config.listening_context = &handed;
    if (rank > 0) config.rendezvous = address.get().c_str();
    JoinAndSum(config);
  });
}

TEST(ListeningTest, ARankAloneTellsItsAddressToo) {
  Handed handed;
  UserConfig config = Config(0, 1, nullptr);
  config.listening = HandOver;
  config.listening_context = &handed;
  std::future<std::string> address = handed.address.get_future();
  JoinAndSum(config);
  ASSERT_EQ(address.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_TRUE(Contains(address.get(), "127.0.0.1:"));
}

TEST(ListeningTest, AProgramThatCannotPassItOnEndsTheCreation) {
  Handed handed;
  handed.outcome = 5;
  UserConfig config = Config(0, 2, nullptr);
  config.insecure = 1;
  config.listening = HandOver;
  config.listening_context = &handed;
  const ErrorCopy error = Refusal(config);
  EXPECT_EQ(error.status, ANNULUS_SYSTEM_ERROR);
  EXPECT_TRUE(Contains(error.message, "`listening` returned 5")) << error.message;
}

TEST(ListeningTest, WithoutAStoreAKeyIsNeeded) {
  Handed handed;
  UserConfig config = Config(0, 2, nullptr);
  config.listening = HandOver;
  config.listening_context = &handed;
  EXPECT_TRUE(Contains(Refusal(config).message, "job_key"));
}

// A store of processes: rank 0 writes the value into a pipe of each other rank, which keeps what it has read.
struct PipeStore {
  std::vector<int> out;
  int in = -1;
  std::string value;
};

int32_t SetInPipes(void* context, const char*, const void* value, size_t bytes) {
  for (const int fd : static_cast<PipeStore*>(context)->out) {
    if (write(fd, value, bytes) != static_cast<ssize_t>(bytes)) return 1;
  }
  return 0;
}

int32_t GetFromPipe(void* context, const char*, void* value, size_t capacity, size_t* bytes, int64_t timeout_ms) {
  auto* const store = static_cast<PipeStore*>(context);
  if (store->value.empty()) {
    pollfd ready{store->in, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(timeout_ms)) != 1) return 1;
    std::array<char, 1024> text;
    const ssize_t got = read(store->in, text.data(), text.size());
    if (got <= 0) return 2;
    store->value.assign(text.data(), got);
  }
  *bytes = store->value.size();
  if (store->value.size() <= capacity) std::copy(store->value.begin(), store->value.end(), static_cast<char*>(value));
  return 0;
}

TEST(StoreProcessTest, ProcessesMeet) {
  constexpr int kSize = 3;
  std::array<std::array<int, 2>, kSize> pipes;
  for (auto& ends : pipes) ASSERT_EQ(pipe(ends.data()), 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < kSize; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    PipeStore pipe_store;
    for (int other = 1; rank == 0 && other < kSize; ++other) pipe_store.out.push_back(pipes[other][1]);
    pipe_store.in = pipes[rank][0];
    annulus_store_t store{};
    store.struct_bytes = sizeof store;
    store.context = &pipe_store;
    store.set = SetInPipes;
    store.get = GetFromPipe;
    JoinAndSum(Config(rank, kSize, &store));
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  for (const auto& ends : pipes) {
    for (const int fd : ends) close(fd);
  }
}

}  // namespace
}  // namespace annulus
