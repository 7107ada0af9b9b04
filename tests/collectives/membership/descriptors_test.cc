// Descriptors while a communicator exists: a program that a rank starts inherits none of the library's, and a child
// that it forks keeps no connection open.

#include <annulus.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/collectives/harness/cluster.h"

namespace annulus {
namespace {

std::set<std::string> OpenDescriptors() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo"))
    names.insert(entry.path().filename());
  return names;
}

// False when it is closed by now.
bool IsInherited(const std::string& name) {
  std::ifstream file("/proc/self/fdinfo/" + name);
  std::string word;
  while (file >> word) {
    if (word != "flags:") continue;
    unsigned long flags = 0;
    file >> std::oct >> flags;
    constexpr unsigned long kCloseOnExec = 02000000;
    return (flags & kCloseOnExec) == 0;
  }
  return false;
}

bool IsSocket(int fd) {
  struct stat found {};
  return fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode);
}

// How many of the sockets that this process has now are none in a child that it forks.
int ClosedInChild(const std::vector<int>& sockets) {
  const pid_t child = fork();
  if (child == 0) {
    int closed = 0;
    for (const int fd : sockets) closed += IsSocket(fd) ? 0 : 1;
    _exit(closed);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

class DescriptorsTest : public testing::TestWithParam<const char*> {};

TEST_P(DescriptorsTest, NoneOutlivesExec) {
  const std::set<std::string> before = OpenDescriptors();
  ClusterConfig config;
  config.nranks = 3;
  config.transport = GetParam();
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    float value = 1;
    ASSERT_EQ(annulus_allreduce(comm, &value, &value, 1, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
    annulus_comm_t* child = nullptr;
    ASSERT_EQ(annulus_comm_dup(comm, &child), ANNULUS_OK) << LastMessage();
    if (rank == 0) {
      int opened = 0;
      for (const std::string& name : OpenDescriptors()) {
        if (before.contains(name)) continue;
        ++opened;
        std::error_code error;
        const auto path = std::filesystem::read_symlink("/proc/self/fd/" + name, error);
        EXPECT_FALSE(IsInherited(name)) << name << " " << path;
      }
      EXPECT_GE(opened, 12);  // At least the reactors, and the sockets of links and control.
    }
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_destroy(child), ANNULUS_OK);
  });
}

TEST_P(DescriptorsTest, ForkedChildrenKeepNoConnection) {
  int others[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, others), 0);
  const std::set<std::string> before = OpenDescriptors();
  ClusterConfig config;
  config.nranks = 3;
  config.transport = GetParam();
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    float value = 1;
    ASSERT_EQ(annulus_allreduce(comm, &value, &value, 1, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
    if (rank == 0) {
      std::vector<int> sockets;
      for (const std::string& name : OpenDescriptors()) {
        if (!before.contains(name) && IsSocket(std::stoi(name))) sockets.push_back(std::stoi(name));
      }
      EXPECT_GE(sockets.size(), 10u);  // Both ends of 3 links for collectives and of 2 control connections.
      EXPECT_EQ(ClosedInChild(sockets), static_cast<int>(sockets.size()));
      EXPECT_EQ(ClosedInChild({others[0], others[1]}), 0) << "the program's own";
    }
    // They are open here as before.
    EXPECT_EQ(annulus_allreduce(comm, &value, &value, 1, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
  });
  close(others[0]);
  close(others[1]);
}

INSTANTIATE_TEST_SUITE_P(Transports, DescriptorsTest, testing::Values("tcp", "shm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
