// What is said of how calls are done, for ranks that do not exist.
#include "collectives/comm/explain.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

#include "transport/select/select.h"

namespace annulus {
namespace {

constexpr int kRanks = 4;

ExplainInput InputOf(bool have_devices) {
  std::optional<ExplainInput> input;
  const Status made = HypotheticalInput(kRanks, 1, Options(), Transports(), &input);
  EXPECT_TRUE(made.ok()) << made.message();
  input->topology.have_devices = have_devices;
  return {input->settings, input->topology, AlgorithmChoice(input->settings, input->topology), "", ""};
}

TEST(ExplainTest, CallsWhosePartsMayDifferAreExplainedForEqualParts) {
  const ExplainInput input = InputOf(false);
  const std::pair<CollectiveKind, std::string> large[] = {{CollectiveKind::kAllgatherv, "ring"},
                                                          {CollectiveKind::kReduceScatterv, "ring"},
                                                          {CollectiveKind::kGatherv, "direct"},
                                                          {CollectiveKind::kScatterv, "direct"},
                                                          {CollectiveKind::kAlltoallv, "direct"}};
  for (const auto& [kind, algorithm] : large) {
    const std::string name = KindName(kind);
    EXPECT_EQ(ExplainCall(input, kind, 8, 4).find(name + " of 8 x 4 bytes: one_hop, "), 0u);
    EXPECT_EQ(ExplainCall(input, kind, 50'000, 4).find(name + " of 50000 x 4 bytes: " + algorithm + ", "), 0u);
  }
}

TEST(ExplainTest, TheTimeOfAFoldIsSaidToBeThatOfTheQuestion) {
  const std::string question = " us for the ranks' question; the GPUs' time is not modelled";
  const std::string text = ExplainCall(InputOf(true), CollectiveKind::kAllreduce, 1 << 20, 4);
  EXPECT_NE(text.find(": shared_fold"), std::string::npos) << text;
  EXPECT_NE(text.find("; expected "), std::string::npos) << text;
  EXPECT_NE(text.find(question + "\n"), std::string::npos) << text;
  EXPECT_NE(text.find(question + ", adds in the ring's order\n"), std::string::npos) << text;
  EXPECT_EQ(ExplainCall(InputOf(false), CollectiveKind::kAllreduce, 1 << 20, 4).find(question), std::string::npos);
}

}  // namespace
}  // namespace annulus
