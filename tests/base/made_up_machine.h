// MadeUpMachine: folders as those in which Linux tells where devices and CPUs are.
//
// Threads: one at a time; whoever reads them may be any.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace annulus {

class MadeUpMachine {
 public:
  explicit MadeUpMachine(const std::string& name)
      : sysfs_(std::filesystem::canonical(::testing::TempDir()).string() + "/" + name + std::to_string(getpid())),
        infiniband_(sysfs_ + "/class/infiniband") {
    std::filesystem::create_directories(sysfs_);
  }
  ~MadeUpMachine() { std::filesystem::remove_all(sysfs_); }
  MadeUpMachine(const MadeUpMachine&) = delete;
  MadeUpMachine& operator=(const MadeUpMachine&) = delete;

  // `way`: "pci0000:16/0000:16:01.0/0000:18:00.0". `node`: its NUMA node, as the kernel tells it.
  void AddDevice(const std::string& way, const std::string& node) const {
    Write("devices/" + way + "/numa_node", node + "\n");
    Link("bus/pci/devices/" + std::filesystem::path(way).filename().string(), sysfs_ + "/devices/" + way);
  }
  // An RDMA device of that name.
  void AddCard(const std::string& name, const std::string& way, const std::string& node) const {
    AddDevice(way, node);
    Link("class/infiniband/" + name + "/device", sysfs_ + "/devices/" + way);
  }
  // Two sockets with two switches each, and below each switch a GPU and a card. Those of the first socket are below one
  // host bridge, those of the second have each their own. The last card is near the first GPU.
  void AddTwoSockets() const {
    const std::string switches[] = {"pci0000:0c/0000:0c:01.0/0000:0d:00.0/", "pci0000:0c/0000:0c:02.0/0000:2d:00.0/",
                                    "pci0000:80/0000:80:01.0/0000:81:00.0/", "pci0000:a0/0000:a0:01.0/0000:a1:00.0/"};
    for (int i = 0; i < 4; ++i) {
      const std::string node = i < 2 ? "0" : "1";
      AddDevice(switches[i] + "0000:0e:00.0/0000:1" + std::to_string(i) + ":00.0", node);
      AddCard("sim" + std::to_string(3 - i), switches[i] + "0000:0e:01.0/0000:2" + std::to_string(i) + ":00.0", node);
    }
    Write("devices/system/node/online", "0-1\n");
    Write("devices/system/node/node0/cpulist", "0-4999\n");
    Write("devices/system/node/node1/cpulist", "5000-5999\n");
  }

  void Write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(sysfs_ + "/" + file).parent_path());
    std::ofstream(sysfs_ + "/" + file) << text;
  }
  void Link(const std::string& name, const std::string& target) const {
    std::filesystem::create_directories(std::filesystem::path(sysfs_ + "/" + name).parent_path());
    std::filesystem::create_symlink(target, sysfs_ + "/" + name);
  }

  const std::string& sysfs() const { return sysfs_; }
  // Where it tells of RDMA devices.
  const char* infiniband() const { return infiniband_.c_str(); }

 private:
  const std::string sysfs_;
  const std::string infiniband_;
};

}  // namespace annulus
