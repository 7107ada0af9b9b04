#include "transport/verbs/device/verbs_memory.h"

#include <sys/resource.h>

#include <cerrno>
#include <string>

namespace annulus {
namespace {

// Says what the limit is, if there is one: the usual reason for a refusal.
std::string LockLimitText() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return " (the limit on locked memory, ulimit -l, is " + std::to_string(limit.rlim_cur / 1024) +
         " KiB: raise it in /etc/security/limits.conf, by LimitMEMLOCK= of "
         "systemd, or by --ulimit memlock=-1 of a "
         "container)";
}

}  // namespace

VerbsMemory::~VerbsMemory() {
  if (region_ != nullptr) hub_->api().dereg_mr(region_);
}

std::byte* VerbsMemory::data() const {
  const uintptr_t address = reinterpret_cast<uintptr_t>(block_.data());
  return reinterpret_cast<std::byte*>((address + kPage - 1) / kPage * kPage);
}

Status VerbsMemory::Register(bool by_peer) {
  if (block_.data() == nullptr) return {Code::kOutOfMemory, "no memory for the slots of a verbs link"};
  const int access = IBV_ACCESS_LOCAL_WRITE | (by_peer ? IBV_ACCESS_REMOTE_WRITE : 0);
  region_ = hub_->api().reg_mr(hub_->domain(), data(), bytes_, access);
  if (region_ != nullptr) return Status();
  const int error = errno;
  const Status refused = Status::System(
      "verbs: " + hub_->device().Describe() + " cannot register " + std::to_string(bytes_) + " bytes", error);
  const std::string limit = error == ENOMEM || error == EAGAIN ? LockLimitText() : "";
  return {error == ENOMEM ? Code::kOutOfMemory : Code::kSystem, refused.message() + limit, Status::kNoRank, error};
}

}  // namespace annulus
