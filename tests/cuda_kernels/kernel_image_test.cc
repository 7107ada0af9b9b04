// The library has the kernels that were compiled last, and not those of an earlier build: the compiler does not tell
// Bazel that it embeds a file.
#include "cuda_kernels/kernel_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

namespace annulus::cuda {
namespace {

TEST(KernelImageTest, IsTheFileThatTheCompilerWrote) {
  std::ifstream file("cuda_kernels/reduce_kernels.fatbin", std::ios::binary);
  ASSERT_TRUE(file.is_open());
  const std::vector<char> compiled{std::istreambuf_iterator<char>(file), {}};
  const std::span<const std::byte> embedded = KernelImage();
  ASSERT_EQ(embedded.size(), compiled.size());
  EXPECT_TRUE(std::equal(compiled.begin(), compiled.end(), reinterpret_cast<const char*>(embedded.data())));
}

}  // namespace
}  // namespace annulus::cuda
