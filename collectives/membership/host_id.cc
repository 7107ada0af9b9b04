#include "collectives/membership/host_id.h"

#include <unistd.h>

#include "base/text_file.h"

namespace annulus {

std::string FindHostId() {
  std::string boot = ReadTextFile("/proc/sys/kernel/random/boot_id");
  boot = boot.substr(0, boot.find('\n'));
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
