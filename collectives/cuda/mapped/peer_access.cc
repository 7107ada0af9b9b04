#include "collectives/cuda/mapped/peer_access.h"

#include <algorithm>
#include <cstring>

namespace annulus {
namespace {

bool IsSame(const cuda::Uuid& a, const cuda::Uuid& b) { return std::memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0; }

}  // namespace

Status PeerAccess::Ask(const CudaDevice& device, const cuda::Uuid& of, bool* is_seen) {
  *is_seen = false;
  const cuda::Driver& driver = device.driver();
  cuda::Device each = 0;
  for (int number = 0; driver->DeviceGet(&each, number) == cuda::Result::kSuccess; ++number) {
    cuda::Uuid uuid{};
    if (driver->DeviceGetUuid(&uuid, each) != cuda::Result::kSuccess || !IsSame(uuid, of)) continue;
    *is_seen = true;
    int can = 0;
    ANNULUS_RETURN_IF_ERROR(
        driver.ToStatus(driver->DeviceCanAccessPeer(&can, device.handle(), each), "cuDeviceCanAccessPeer"));
    if (can != 0) return Status();
    return {Code::kUnsupported, "GPU " + std::to_string(device.ordinal()) + " cannot reach the memory of GPU " +
                                    std::to_string(number) + ", neither over NVLink nor over PCIe"};
  }
  return Status();
}

PeerAccess::Pair* PeerAccess::Find(const CudaDevice& device, const cuda::Uuid& of) {
  const auto is_it = [&](const Pair& pair) { return pair.device == &device && IsSame(pair.of, of); };
  const auto found = std::ranges::find_if(pairs_, is_it);
  return found != pairs_.end() ? &*found : nullptr;
}

Status PeerAccess::Check(const CudaDevice& device, const cuda::Uuid& of) {
  if (IsSame(device.uuid(), of)) return Status();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Pair* const known = Find(device, of); known != nullptr) {
      if (!known->reached.ok() && !known->is_seen && known->retries.MayTry()) known->reached = Status();
      return known->reached;
    }
  }
  bool is_seen = false;
  const Status reached = Ask(device, of, &is_seen);
  if (!reached.ok() && reached.code() != Code::kUnsupported) return reached;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Find(device, of) == nullptr && pairs_.size() < kMostPairs) pairs_.push_back({&device, of, reached, is_seen});
  return reached;
}

Status PeerAccess::Enable(const CudaDevice& device, const CudaDevice& of) {
  ANNULUS_RETURN_IF_ERROR(Check(device, of.uuid()));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const Pair* const known = Find(device, of.uuid()); known != nullptr && known->is_enabled) return Status();
  }
  const cuda::Driver& driver = device.driver();
  const cuda::ScopedContext scope(driver, device.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  const cuda::Result result = driver->CtxEnablePeerAccess(of.context(), 0);
  // The program may have done it.
  if (result != cuda::Result::kPeerAccessAlreadyEnabled)
    ANNULUS_RETURN_IF_ERROR(driver.ToStatus(result, "cuCtxEnablePeerAccess"));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Pair* const known = Find(device, of.uuid()); known != nullptr) known->is_enabled = true;
  return Status();
}

void PeerAccess::Refuse(const CudaDevice& device, const cuda::Uuid& of, const Status& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Pair* const known = Find(device, of);
  if (known == nullptr || known->is_seen) return;
  known->retries.Failed();
  known->reached = {Code::kUnsupported,
                    "GPU " + std::to_string(device.ordinal()) +
                        " cannot reach the memory of a GPU that its process does not see: " + why.message()};
}

void PeerAccess::Forget(const cuda::Uuid& of) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(pairs_, [&](const Pair& pair) { return IsSame(pair.of, of) || IsSame(pair.device->uuid(), of); });
}

std::string PeerAccess::WhyNot() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::ranges::find_if(pairs_, [](const Pair& pair) { return !pair.reached.ok(); });
  return found != pairs_.end() ? found->reached.message() : "";
}

}  // namespace annulus
