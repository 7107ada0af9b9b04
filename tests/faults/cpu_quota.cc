#include "tests/faults/cpu_quota.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/check.h"

namespace annulus {
namespace {

struct Parent {
  std::string folder;
  bool is_version_2 = false;
};

bool HasWord(std::string text, const std::string& word) {
  for (char& c : text) {
    if (c == ',') c = ' ';
  }
  std::istringstream words(text);
  for (std::string each; words >> each;) {
    if (each == word) return true;
  }
  return false;
}

std::string LineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The group in which this process is, of the hierarchy with the controller "cpu".
Parent FindParent() {
  std::ifstream groups("/proc/self/cgroup");
  std::string own[2];  // By version - 1.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (HasWord(controllers, "cpu")) own[0] = line.substr(second + 1);
    if (controllers.empty()) own[1] = line.substr(second + 1);
  }
  std::ifstream mounts("/proc/self/mounts");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string device, folder, type, options;
    words >> device >> folder >> type >> options;
    if (type == "cgroup" && HasWord(options, "cpu") && !own[0].empty()) return {folder + own[0], false};
    if (type == "cgroup2" && HasWord(LineOf(folder + own[1] + "/cgroup.subtree_control"), "cpu"))
      return {folder + own[1], true};
  }
  return {};
}

bool Write(const std::string& path, const std::string& value) {
  std::ofstream file(path);
  file << value << std::flush;
  return file.good();
}

}  // namespace

std::unique_ptr<CpuQuota> CpuQuota::Create(Nanoseconds period, Nanoseconds share, std::string* why) {
  const Parent parent = FindParent();
  if (parent.folder.empty()) {
    *why = "no control group with the controller cpu";
    return nullptr;
  }
  const std::string group = parent.folder + "/annulus_test_" + std::to_string(getpid());
  if (mkdir(group.c_str(), 0700) != 0) {
    *why = "cannot make " + group + ": " + std::strerror(errno);
    return nullptr;
  }
  std::unique_ptr<CpuQuota> quota(new CpuQuota(parent.folder, group));
  const std::string period_us = std::to_string(period / kMicrosecond);
  const std::string share_us = std::to_string(share / kMicrosecond);
  const bool set = parent.is_version_2
                       ? Write(group + "/cpu.max", share_us + " " + period_us)
                       : Write(group + "/cpu.cfs_period_us", period_us) && Write(group + "/cpu.cfs_quota_us", share_us);
  if (set) return quota;
  *why = "cannot set the quota of " + group;
  return nullptr;
}

CpuQuota::~CpuQuota() {
  LetGo();
  rmdir(group_.c_str());  // Where that fails, an empty group stays behind.
}

void CpuQuota::Add(pid_t pid) {
  ANNULUS_CHECK(Write(group_ + "/cgroup.procs", std::to_string(pid)));
  taken_.push_back(pid);
}

void CpuQuota::LetGo() {
  for (const pid_t pid : taken_) Write(parent_ + "/cgroup.procs", std::to_string(pid));  // Unless it has ended.
  taken_.clear();
}

int CpuQuota::throttled_periods() const {
  std::ifstream stat(group_ + "/cpu.stat");
  std::string name;
  for (int value = 0; stat >> name >> value;) {
    if (name == "nr_throttled") return value;
  }
  return 0;
}

}  // namespace annulus
