// fusion under annulus-run: it runs, every sum in every way is right, and wrong arguments are told once.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/launcher/launcher_run.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

LauncherRun::Setup Fusion(int nranks, const std::string& arguments, std::vector<std::string> variables = {}) {
  LauncherRun::Setup setup;
  setup.arguments = {"-np", std::to_string(nranks), "--no-prefix", "bench/fusion/fusion"};
  std::istringstream words(arguments);
  for (std::string word; words >> word;) setup.arguments.push_back(word);
  setup.variables = std::move(variables);
  return setup;
}

// The lines that are no comments.
std::vector<std::string> Rows(const std::string& out) {
  std::vector<std::string> rows;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind('#', 0) != 0) rows.push_back(line);
  }
  return rows;
}

class FusionRun : public testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(FusionRun, SumsBothModelsRightly) {
  const auto [nranks, transport] = GetParam();
  LauncherRun run(Fusion(nranks,
                         "bench/fusion/resnet50.txt bench/fusion/bert_large.txt --limit-mib 1,2 --rounds 1 --warmup 1",
                         {std::string("ANNULUS_TRANSPORT=") + transport}));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  const std::vector<std::string> rows = Rows(run.out());
  ASSERT_EQ(rows.size(), 4u) << run.out();
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].rfind(i < 2 ? "resnet50 " : "bert_large ", 0), 0u) << rows[i];
    EXPECT_EQ(rows[i].substr(rows[i].size() - 2), " 0") << "wrong elements: " << rows[i];
  }
}

const std::vector<int> kRanks = kSanitized ? std::vector<int>{2} : std::vector<int>{1, 2, 4};
INSTANTIATE_TEST_SUITE_P(Ranks, FusionRun, testing::Combine(testing::ValuesIn(kRanks), testing::Values("shm", "tcp")));

TEST(Fusion, OneRankTellsOfWrongArguments) {
  const std::string path = testing::TempDir() + "/bad.txt";
  std::ofstream(path) << "conv 3x\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "models"}, {"none.txt", "none.txt: no tensors, or no such file"}, {path, "bad.txt:1: not a tensor"}};
  for (const auto& [arguments, told] : cases) {
    LauncherRun run(Fusion(2, arguments));
    EXPECT_EQ(run.Finish(), 2) << run.out() << run.err();
    const size_t first = run.err().find(told);
    ASSERT_NE(first, std::string::npos) << run.err();
    EXPECT_EQ(run.err().find(told, first + 1), std::string::npos) << run.err();
  }
}

}  // namespace
}  // namespace annulus
