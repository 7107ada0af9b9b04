#include "transport/verbs/device/verbs_fork.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace annulus {
namespace {

// rdma-core 32 to 34 cannot say whether it is needed. Then it is done: it costs children memory that they have no use
// for.
ibv_fork_status StatusOf(const VerbsApi& api) {
  return api.is_fork_initialized != nullptr ? api.is_fork_initialized() : IBV_FORK_DISABLED;
}

const char* Reason(int error) {
  switch (error) {
    case EINVAL:
      return ": something in this process registered memory before; set RDMAV_FORK_SAFE=1";
    case ENOSYS:
      return ": the kernel does not let it";
    default:
      return "";
  }
}

}  // namespace

int PrepareForForks(const VerbsApi& api) {
  if (StatusOf(api) != IBV_FORK_DISABLED) return 0;
  return api.fork_init != nullptr ? api.fork_init() : ENOSYS;
}

void WarnOfForks(int error, int rank) {
  Log(LogLevel::kWarn, rank,
      "verbs: do not fork while this process has links, if the kernel is older than Linux 5.12: devices could then "
      "write to the child's memory in place of the parent's. ibv_fork_init, which prevents that, failed: %s%s",
      std::strerror(error), Reason(error));
}

void ShareWithChildren(const VerbsApi& api, std::byte* begin, size_t bytes) {
  if (StatusOf(api) == IBV_FORK_UNNEEDED) return;
  // Without the library's doing it changes nothing.
  (void)madvise(begin, bytes, MADV_DOFORK);
}

}  // namespace annulus
