// CudaDomain in forked processes, on the stand-in for CUDA's driver.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <set>

#include "collectives/cuda/cuda_domain.h"
#include "tests/collectives/cuda/cuda_fixture.h"

namespace annulus {
namespace {

using CudaForkTest = CudaFixture;

// Children of one process have the same addresses: by its number each must know the others' memory from its own.
TEST_F(CudaForkTest, ForkedProcessesHaveNumbersOfTheirOwn) {
  Start({});
  const CudaDomain& domain = static_cast<const CudaDomain&>(*domain_);
  std::set<uint64_t> numbers = {domain.process()};
  EXPECT_EQ(domain.process(), *numbers.begin());
  constexpr size_t kChildren = 2;
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  for (size_t i = 0; i < kChildren; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const uint64_t number = domain.process();
      _exit(write(pipe_ends[1], &number, sizeof number) == sizeof number ? 0 : 1);
    }
    uint64_t number = 0;
    EXPECT_EQ(read(pipe_ends[0], &number, sizeof number), static_cast<ssize_t>(sizeof number));
    numbers.insert(number);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  EXPECT_EQ(numbers.size(), 1 + kChildren);
}

}  // namespace
}  // namespace annulus
