// The size of the last-level cache is read as the kernel writes it.
#include "base/cpu_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace annulus {
namespace {

class CpuCacheTest : public testing::Test {
 protected:
  // One cache of the processor whose folder this is.
  void Add(int index, const std::string& level, const std::string& type, const std::string& size) {
    const std::filesystem::path cache = folder_ + "/index" + std::to_string(index);
    std::filesystem::create_directories(cache);
    std::ofstream(cache / "level") << level << "\n";
    std::ofstream(cache / "type") << type << "\n";
    std::ofstream(cache / "size") << size << "\n";
  }

  const std::string folder_ = testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(CpuCacheTest, TakesTheHighestLevelThatHoldsData) {
  Add(0, "1", "Data", "48K");
  Add(1, "1", "Instruction", "32K");
  Add(2, "2", "Unified", "1024K");
  Add(3, "3", "Unified", "32768K");
  Add(4, "4", "Instruction", "64M");
  EXPECT_EQ(LastLevelCacheBytes(folder_), size_t{32} << 20);
}

TEST_F(CpuCacheTest, UnderstandsUnits) {
  Add(0, "1", "Data", "49152");
  EXPECT_EQ(LastLevelCacheBytes(folder_), 49152u);
  Add(1, "2", "Unified", "2M");
  EXPECT_EQ(LastLevelCacheBytes(folder_), size_t{2} << 20);
}

TEST_F(CpuCacheTest, IgnoresWhatItDoesNotUnderstand) {
  Add(0, "1", "Data", "48K");
  Add(1, "2", "Unified", "many");
  Add(2, "3", "Unified", "-1K");
  Add(3, "x", "Unified", "7K");
  Add(5, "4", "Unified", "99999999999999999999K");
  EXPECT_EQ(LastLevelCacheBytes(folder_), size_t{48} << 10);
  EXPECT_EQ(LastLevelCacheBytes(folder_ + "/nothing"), 0u);
}

TEST(CpuCache, ThisMachineHasOne) { EXPECT_GE(LastLevelCacheBytes(), size_t{64} << 10); }

}  // namespace
}  // namespace annulus
