#include "tests/frameworks/mpi_process.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/collectives/harness/cluster.h"

namespace annulus_mpi {
namespace {

void* Load(const char* path) {
  const std::string folder = std::string(std::getenv("TEST_SRCDIR")) + "/" + std::getenv("TEST_WORKSPACE") + "/";
  void* const library = dlopen((folder + path).c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  return library;
}

}  // namespace

Wrapper::Wrapper() {
  // Whose soname the wrapper needs; an installation has it beside.
  static_cast<void>(Load("collectives/libannulus.so"));
  library_ = Load("frameworks/mpi/libannulus_mpiwrapper.so");
}

std::string Wrapper::TextOf(int code) const {
  char text[kMaxErrorString];
  int length = -1;
  EXPECT_EQ((*this)("Error_string", code, text, &length), kSUCCESS);
  EXPECT_EQ(std::string(text).size(), static_cast<size_t>(length));
  return text;
}

void ForkRanks(int size, const std::function<void(const Wrapper& mpi, int rank)>& body, int lost) {
  const annulus::TestPort port;
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    setenv("ANNULUS_RANK", std::to_string(rank).c_str(), 1);
    setenv("ANNULUS_SIZE", std::to_string(size).c_str(), 1);
    setenv("ANNULUS_RENDEZVOUS", port.address().c_str(), 1);
    setenv("ANNULUS_JOB_KEY", "a key of enough characters", 1);
    setenv("ANNULUS_TIMEOUT_MS", "100000", 1);
    body(Wrapper(), rank);
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  for (int rank = 0; rank < size; ++rank) {
    int status = -1;
    ASSERT_EQ(waitpid(children[static_cast<size_t>(rank)], &status, 0), children[static_cast<size_t>(rank)]);
    if (rank < size - lost) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ": status " << status;
    } else {
      EXPECT_TRUE(WIFSIGNALED(status)) << "rank " << rank << ": status " << status;
    }
  }
}

void ForkInitialised(int size, const std::function<void(const Wrapper& mpi, int rank)>& body, int lost) {
  ForkRanks(
      size,
      [&](const Wrapper& mpi, int rank) {
        int provided = -1;
        ASSERT_EQ(mpi("Init_thread", static_cast<int*>(nullptr), static_cast<char***>(nullptr),
                      static_cast<int>(kTHREAD_MULTIPLE), &provided),
                  kSUCCESS);
        EXPECT_EQ(provided, kTHREAD_MULTIPLE);
        body(mpi, rank);
        EXPECT_EQ(mpi("Finalize"), kSUCCESS);
      },
      lost);
}

void ExpectSum(const Wrapper& mpi, Handle comm, int expected) {
  const int one = 1;
  int sum = 0;
  const int code = mpi("Allreduce", &one, &sum, 1, Handle{kINT}, Handle{kSUM}, comm);
  EXPECT_EQ(code, kSUCCESS) << mpi.TextOf(code);
  EXPECT_EQ(sum, expected);
}

void ExpectError(const Wrapper& mpi, int code, intptr_t error_class, const std::string& text) {
  EXPECT_EQ(code, error_class) << text;
  EXPECT_THAT(mpi.TextOf(code), testing::HasSubstr(text));
}

}  // namespace annulus_mpi
