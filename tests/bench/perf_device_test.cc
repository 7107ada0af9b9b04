// annulus-perf with buffers on a GPU, here the stand-in for CUDA's driver under the driver's name.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/launcher/launcher_run.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr char kQuick[] = " --seconds 0.001 -w 1";

std::string JsonPath() { return testing::TempDir() + "/device.json"; }

// The program with these arguments on each rank; `has_driver`: with the stand-in, where the system looks for libraries.
LauncherRun::Setup Perf(int nranks, const std::string& arguments, std::vector<std::string> variables,
                        bool has_driver = true) {
  LauncherRun::Setup setup;
  setup.run_time = 200 * kSecond;
  setup.arguments = {"-np", std::to_string(nranks), "bench/perf/annulus-perf", "--json", JsonPath()};
  std::istringstream words(arguments + kQuick);
  for (std::string word; words >> word;) setup.arguments.push_back(word);
  setup.variables = std::move(variables);
  if (has_driver)
    setup.variables.push_back("LD_LIBRARY_PATH=" + std::filesystem::current_path().string() +
                              "/tests/cuda/fake_driver");
  // A fault of GCC 12's leak check: it reads the thread-local variables of a library that was opened later, and falls.
  if (const char* const options = std::getenv("ASAN_OPTIONS"); options != nullptr)
    setup.variables.push_back(std::string("ASAN_OPTIONS=") + options + ":intercept_tls_get_addr=0");
  return setup;
}

nlohmann::json Results() {
  std::ifstream file(JsonPath());
  std::stringstream text;
  text << file.rdbuf();
  return nlohmann::json::parse(text.str());
}

class PerfDeviceTest : public testing::TestWithParam<const char*> {
 protected:
  std::vector<std::string> variables() const { return {std::string("ANNULUS_TRANSPORT=") + GetParam()}; }
};

TEST_P(PerfDeviceTest, EveryCollectiveIsRight) {
  // Checking large results takes most of the time under a sanitizer.
  const std::string sizes = kSanitized ? "-b 4 -e 40000 -f 10000" : "-b 4 -e 400000 -f 100000";
  const std::string types = kSanitized ? " -d float8_e5m2" : " -d float32,float8_e5m2";
  LauncherRun run(Perf(3, "--device 0 " + sizes + types + " -r 1 -o sum,avg --limit 0 --collective all", variables()));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  const nlohmann::json json = Results();
  EXPECT_EQ(json["wrong"], 0);
  // Of each type and two sizes: three kinds with two operations, seven without; and the barrier.
  EXPECT_EQ(json["results"].size(), (kSanitized ? 2u : 4u) * (3 * 2 + 7) + 1);
  EXPECT_NE(json["machine"]["device"].get<std::string>().find("GPU 0, Fake GPU (sm_90), CUDA 13.0; "),
            std::string::npos)
      << json["machine"];
  EXPECT_NE(run.out().find("# buffers on GPU 0, Fake GPU"), std::string::npos) << run.out();
}

TEST_P(PerfDeviceTest, EveryModeIsRight) {
  LauncherRun run(Perf(2, "--device 0 -b 1K -e 100K -f 100 --limit 0 --mode all -m 4", variables()));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  EXPECT_EQ(Results()["wrong"], 0);
}

TEST_P(PerfDeviceTest, ThereIsALimit) {
  LauncherRun run(Perf(2, "--device 0 -b 64K -e 64K --collective allreduce,pingpong", variables()));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  const nlohmann::json json = Results();
  for (const auto& row : json["results"]) EXPECT_GT(row["limit_us"].get<double>(), 0) << row;
  const bool copies = json["machine"]["limit"].get<std::string>().find("on its GPU") != std::string::npos;
  EXPECT_EQ(copies, std::string(GetParam()) == "shm") << json["machine"];
}

TEST_P(PerfDeviceTest, WrongElementsAreSeen) {
  LauncherRun run(Perf(2, "--device 0 -b 1K -e 1K --limit 0 --corrupt 3", variables()));
  EXPECT_EQ(run.Finish(), 3) << run.out() << run.err();
  // Two checks of each of the two forms.
  EXPECT_NE(run.out().find("# wrong elements: 12"), std::string::npos) << run.out();
}

// The program does not know how ranks are linked; c_api_cuda_test has other links under sanitizers.
const std::vector<const char*> kTransports = kSanitized ? std::vector{"shm"} : std::vector{"shm", "tcp"};
INSTANTIATE_TEST_SUITE_P(Transports, PerfDeviceTest, testing::ValuesIn(kTransports),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

// Both ranks have the one GPU of the stand-in.
TEST(PerfPlacesTest, ExplainTellsWhereTheGpusAre) {
  LauncherRun::Setup setup = Perf(2, "--device 0 --explain -b 1M -e 1M", {"ANNULUS_TRANSPORT=shm"});
  const auto json = std::ranges::find(setup.arguments, "--json");
  setup.arguments.erase(json, json + 2);
  LauncherRun run(setup);
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  for (const std::string rank : {"0", "1"}) {
    EXPECT_NE(run.out().find("#   rank " + rank + ": host 0 ("), std::string::npos) << run.out();
    EXPECT_NE(run.out().find("#   rank " + rank + ": rank " + (rank == "0" ? "1" : "0") + " has the same\n"),
              std::string::npos)
        << run.out();
  }
  EXPECT_NE(run.out().find("GPU 0 at 0000:10:00.0 (Fake GPU)"), std::string::npos) << run.out();
  EXPECT_NE(run.out().find("* shared_fold"), std::string::npos) << run.out();
}

TEST(PerfWithoutDeviceTest, TheReasonIsTold) {
  LauncherRun no_gpu(Perf(2, "--device 7 -b 8 -e 8", {}));
  EXPECT_EQ(no_gpu.Finish(), 1) << no_gpu.out() << no_gpu.err();
  EXPECT_NE(no_gpu.err().find("GPU 7"), std::string::npos) << no_gpu.err();
  if (void* const driver = dlopen("libcuda.so.1", RTLD_NOW); driver != nullptr) {
    dlclose(driver);
    GTEST_SKIP() << "this machine has a CUDA driver";
  }
  LauncherRun no_driver(Perf(2, "--device 0 -b 8 -e 8", {}, false));
  EXPECT_EQ(no_driver.Finish(), 1) << no_driver.out() << no_driver.err();
  EXPECT_NE(no_driver.err().find("libcuda.so.1"), std::string::npos) << no_driver.err();
}

}  // namespace
}  // namespace annulus
