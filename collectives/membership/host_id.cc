#include "collectives/membership/host_id.h"

#include <unistd.h>

#include <fstream>

namespace annulus {

std::string FindHostId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    boot = name;
  }
  char network[64] = "";
  const ssize_t length = readlink("/proc/self/ns/net", network, sizeof network - 1);
  return boot + "/" + std::string(network, length > 0 ? length : 0);
}

}  // namespace annulus
