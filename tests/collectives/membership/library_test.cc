// Which library a process has loaded: found, told in the first log line, and readable.
#include "base/library.h"

#include <annulus.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/collectives/harness/cluster.h"

namespace annulus {
namespace {

TEST(LibraryTest, IsAFileThatThisProcessHasMapped) {
  std::ifstream maps("/proc/self/maps");
  std::stringstream mapped;
  mapped << maps.rdbuf();
  const std::string file = std::filesystem::canonical(ThisLibrary().file);
  EXPECT_NE(mapped.str().find(file), std::string::npos) << file;
  EXPECT_EQ(ThisLibrary().version, kLibraryVersion);
}

TEST(LibraryTest, TextLeavesOutWhatIsNotKnown) {
  Library library{{1, 2, 3}, {}, ""};
  EXPECT_EQ(LibraryText(library), "1.2.3");
  library.build.fill(std::byte{0xa5});
  library.file = "/opt/libannulus.so.1";
  EXPECT_EQ(LibraryText(library), "1.2.3, build a5a5a5a5a5a5a5a5, /opt/libannulus.so.1");
}

TEST(LibraryTest, IsToldInTheFirstLineThatARankLogs) {
  UserConfig config;
  config.rank = 0;
  config.size = 1;
  config.Set("log_level", "info");
  testing::internal::CaptureStderr();
  annulus_comm_t* comm = nullptr;
  EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
  const std::string log = testing::internal::GetCapturedStderr();
  annulus_comm_destroy(comm);
  const size_t first = log.find("annulus[0]");  // Lines of the process may come before those of its rank.
  ASSERT_NE(first, std::string::npos) << log;
  const std::string line = log.substr(first, log.find('\n', first) - first);
  EXPECT_NE(line.find("Annulus " + LibraryText(ThisLibrary()) + "; "), std::string::npos) << log;
}

}  // namespace
}  // namespace annulus
