#include "transport/verbs/device/verbs_advice.h"

#include <sys/resource.h>

#include <cerrno>

namespace annulus {
namespace {

// Says what the limit is, if there is one: the usual reason for a refusal of memory, which queues take too.
std::string LockLimitText(uint64_t needed_bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  const std::string needed = std::to_string((needed_bytes + 1023) / 1024) + " KiB";
  return " (the limit on locked memory, ulimit -l, is " + std::to_string(limit.rlim_cur / 1024) + " KiB" +
         (needed_bytes > 0 ? ", and the links need about " + needed : "") +
         ": raise it in /etc/security/limits.conf, by LimitMEMLOCK= of systemd, or by --ulimit memlock=-1 of a "
         "container; it may also be that the device has no more of what was asked for)";
}

}  // namespace

std::string VerbsAdvice(int os_errno, uint64_t needed_bytes) {
  switch (os_errno) {
    case ENOMEM:
    case EAGAIN:
      return LockLimitText(needed_bytes);
    case ETIMEDOUT:
    case ENETUNREACH:
    case EHOSTUNREACH:
      return " (the kernel finds no way to the peer's address: check that both ports are in one network)";
    case EACCES:
    case EPERM:
      return " (see the rights of /dev/infiniband)";
    case ENODEV:
    case EIO:
      return " (the device is gone: see the kernel's log)";
    default:
      return "";
  }
}

}  // namespace annulus
