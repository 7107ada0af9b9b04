// Checkpoint files: what was saved comes back, and no other file passes for one.
#include "docs/examples/fashion_mnist/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "docs/examples/fashion_mnist/network.h"

namespace fashion {
namespace {

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() : path_(testing::TempDir() + "/checkpoint") {
    saved_.epochs_done = 3;
    saved_.seed = 99;
    saved_.parameters.assign(kParameters, 0.25f);
    saved_.velocities.assign(kParameters, -1.5f);
    saved_.parameters.back() = 7;
    EXPECT_EQ(SaveCheckpoint(path_, saved_), "");
  }

  std::string LoadError() {
    Checkpoint loaded;
    loaded.epochs_done = -5;
    const std::string error = LoadCheckpoint(path_, &loaded);
    EXPECT_EQ(loaded.epochs_done == -5, !error.empty());
    return error;
  }

  void Spoil(std::streamoff at) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  }

  std::string path_;
  Checkpoint saved_;
};

TEST_F(CheckpointTest, ComesBackAsItWas) {
  Checkpoint loaded;
  ASSERT_EQ(LoadCheckpoint(path_, &loaded), "");
  EXPECT_EQ(loaded.epochs_done, 3);
  EXPECT_EQ(loaded.seed, 99u);
  EXPECT_EQ(loaded.parameters, saved_.parameters);
  EXPECT_EQ(loaded.velocities, saved_.velocities);
}

TEST_F(CheckpointTest, LeavesNoTemporaryFile) {
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(CheckpointTest, OtherFilesAreRefused) {
  std::ofstream(path_) << "hello";
  EXPECT_NE(LoadError().find("is no checkpoint"), std::string::npos);
}

TEST_F(CheckpointTest, AMissingFileIsNamed) {
  std::filesystem::remove(path_);
  EXPECT_NE(LoadError().find("cannot read the checkpoint " + path_), std::string::npos);
}

TEST_F(CheckpointTest, DamageIsSeenWhereverItIs) {
  Spoil(static_cast<std::streamoff>(std::filesystem::file_size(path_)) / 2);
  EXPECT_NE(LoadError().find("is damaged"), std::string::npos);
}

TEST_F(CheckpointTest, ATornFileIsSeen) {
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  EXPECT_NE(LoadError().find("is damaged"), std::string::npos);
}

TEST_F(CheckpointTest, AFailedSaveSaysWhyAndLeavesTheOldOne) {
  const std::string missing = testing::TempDir() + "/no/such/folder/checkpoint";
  EXPECT_NE(SaveCheckpoint(missing, saved_).find("No such file"), std::string::npos);
  EXPECT_EQ(LoadError(), "");
}

}  // namespace
}  // namespace fashion
