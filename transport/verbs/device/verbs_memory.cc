#include "transport/verbs/device/verbs_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>

namespace annulus {

namespace {

Status Refused(const VerbsHub& hub, size_t bytes, const char* what, int error) {
  const Status refused = Status::System(
      "verbs: " + hub.device().Describe() + " cannot register " + std::to_string(bytes) + " bytes" + what, error);
  const bool is_lacking = error == EOPNOTSUPP || error == EPROTONOSUPPORT || error == ENOSYS;
  const Code code = error == ENOMEM ? Code::kOutOfMemory : is_lacking ? Code::kUnsupported : Code::kSystem;
  return {code, refused.message() + hub.AdviceOn(error), Status::kNoRank, error};
}

}  // namespace

Status RegisterWithDevice(const VerbsHub& hub, std::byte* data, size_t bytes, int access, ibv_mr** region) {
  *region = hub.api().reg_mr(hub.domain(), data, bytes, access);
  return *region != nullptr ? Status() : Refused(hub, bytes, "", errno);
}

Status RegisterDeviceMemory(const VerbsHub& hub, const DeviceRange& range, int fd, uint64_t offset, int access,
                            ibv_mr** region) {
  const auto address = reinterpret_cast<uint64_t>(range.begin);
  *region = hub.api().reg_dmabuf_mr(hub.domain(), offset, range.bytes, address, fd, access);
  return *region != nullptr ? Status() : Refused(hub, range.bytes, " of device memory", errno);
}

VerbsMemory::~VerbsMemory() {
  for (const Registration& each : registrations_) each.hub->api().dereg_mr(each.region);
}

VerbsMemory::Mapping::~Mapping() {
  registration = SlotRegistration();
  if (data != nullptr) munmap(data, bytes);
}

VerbsMemory::VerbsMemory(SlotMemory* memory, size_t bytes) : bytes_(bytes) {
  if (!IsLarge(bytes)) {
    block_.emplace(memory, Footprint(bytes));
    return;
  }
  mapping_.bytes = Footprint(bytes);
  mapping_.data = MapPages(mapping_.bytes, -1);
  if (mapping_.data == nullptr) return;
  mapping_.status = SlotRegistration::Make(memory, mapping_.data, mapping_.bytes, &mapping_.registration);
}

std::byte* VerbsMemory::data() const {
  if (!block_) return mapping_.data;
  const uintptr_t address = reinterpret_cast<uintptr_t>(block_->data());
  return reinterpret_cast<std::byte*>((address + kPage - 1) / kPage * kPage);
}

Status VerbsMemory::Register(const std::shared_ptr<VerbsHub>& hub, bool by_peer, ibv_mr** region) {
  ANNULUS_RETURN_IF_ERROR(mapping_.status);
  if (data() == nullptr) return {Code::kOutOfMemory, "no memory for the slots of a verbs link"};
  const int access = IBV_ACCESS_LOCAL_WRITE | (by_peer ? IBV_ACCESS_REMOTE_WRITE : 0);
  ANNULUS_RETURN_IF_ERROR(RegisterWithDevice(*hub, data(), bytes_, access, region));
  registrations_.push_back({hub, *region});
  return Status();
}

}  // namespace annulus
