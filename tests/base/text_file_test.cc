// ReadTextFile: all of a file, of whatever length, and nothing where there is none.
#include "base/text_file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>
#include <string>

namespace annulus {
namespace {

TEST(TextFileTest, IsReadWhole) {
  const std::string path = testing::TempDir() + "/text";
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{100'000}}) {
    const std::string text(bytes, 'x');
    std::ofstream(path) << text;
    EXPECT_EQ(ReadTextFile(path), text);
  }
  EXPECT_NE(ReadTextFile("/proc/self/maps").find("[stack]"), std::string::npos);
}

TEST(TextFileTest, ThatIsNotThereIsEmptyAndTheCauseKnown) {
  errno = 0;
  EXPECT_EQ(ReadTextFile(testing::TempDir() + "/none"), "");
  EXPECT_EQ(errno, ENOENT);
}

}  // namespace
}  // namespace annulus
