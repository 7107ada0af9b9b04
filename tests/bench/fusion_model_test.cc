// Models: what a line means, what is refused, and that the models in the tree have the size of the real ones.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "bench/fusion/model.h"

namespace annulus::fusion {
namespace {

Status Read(const std::string& text, std::vector<Tensor>* tensors) {
  std::istringstream in(text);
  return ReadModel(in, "net.txt", tensors);
}

struct RealModel {
  const char* path;
  size_t tensors;
  size_t elements;
};

class RealModels : public testing::TestWithParam<RealModel> {};

TEST_P(RealModels, HaveTheTensorsOfTheArchitecture) {
  std::ifstream file(GetParam().path);
  std::vector<Tensor> tensors;
  const Status read = ReadModel(file, GetParam().path, &tensors);
  ASSERT_TRUE(read.ok()) << read.ToString();
  EXPECT_EQ(tensors.size(), GetParam().tensors);
  EXPECT_EQ(TotalElements(tensors), GetParam().elements);
  std::set<std::string> names;
  for (const Tensor& tensor : tensors) names.insert(tensor.name);
  EXPECT_EQ(names.size(), tensors.size()) << "two tensors of one name";
}

INSTANTIATE_TEST_SUITE_P(Files, RealModels,
                         testing::Values(RealModel{"bench/fusion/resnet50.txt", 161, 25557032},
                                         RealModel{"bench/fusion/bert_large.txt", 398, 336226108}));

TEST(ReadModel, TakesNamesAndDimensions) {
  std::vector<Tensor> tensors;
  ASSERT_TRUE(Read("# a net\n\nconv 2x3x4x5\nbias 7  # the last one\n", &tensors).ok());
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "conv");
  EXPECT_EQ(tensors[0].elements, 120u);
  EXPECT_EQ(tensors[1].elements, 7u);
}

TEST(ReadModel, NamesTheLineAtFault) {
  for (const char* line : {"conv", "conv 0", "conv 2x", "conv x2", "conv 2xx3", "conv 2*3", "conv -1", "conv 2x3 4",
                           "conv 99999999999999999999", "conv 1048576x1048576x2"}) {
    std::vector<Tensor> tensors;
    const Status read = Read(std::string("fine 1\n") + line + "\n", &tensors);
    EXPECT_NE(read.message().find("net.txt:2: not a tensor"), std::string::npos) << line << ": " << read.ToString();
    EXPECT_TRUE(tensors.empty());
  }
  std::vector<Tensor> tensors;
  EXPECT_NE(Read("# nothing\n", &tensors).message().find("net.txt: no tensors"), std::string::npos);
}

TEST(Cut, LeavesOutWhatDoesNotFit) {
  const std::vector<Tensor> tensors = {{"a", 5}, {"b", 100}, {"c", 3}, {"d", 3}, {"e", 2}};
  const std::vector<Tensor> cut = Cut(tensors, 10);
  ASSERT_EQ(cut.size(), 3u);
  EXPECT_EQ(cut[1].name, "c");
  EXPECT_EQ(cut[2].name, "e");
  EXPECT_EQ(TotalElements(cut), 10u);
  EXPECT_TRUE(Cut(tensors, 1).empty());
}

}  // namespace
}  // namespace annulus::fusion
