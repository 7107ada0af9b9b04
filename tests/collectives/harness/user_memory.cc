#include "tests/collectives/harness/user_memory.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "collectives/api/process_state.h"
#include "tests/cuda/cuda_test_device.h"
#include "tests/device/sim_device.h"

namespace annulus {

UserBytes::UserBytes(TestDevice* device, const Bytes& content)
    : device_(device), host_(device == nullptr ? content : Bytes()), data_(host_.data()), bytes_(content.size()) {
  if (device_ == nullptr) return;
  data_ = device_->Allocate(bytes_);
  device_->Write(data_, content.data(), bytes_);
}

UserBytes::UserBytes(UserBytes&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      host_(std::move(other.host_)),
      data_(other.data_),
      bytes_(other.bytes_) {}

UserBytes::~UserBytes() {
  if (device_ != nullptr) device_->Free(data_);
}

Bytes UserBytes::Read(size_t offset, size_t bytes) const {
  Bytes content(bytes);
  if (device_ != nullptr) {
    device_->Read(content.data(), data_ + offset, bytes);
  } else {
    std::copy_n(data_ + offset, bytes, content.begin());
  }
  return content;
}

UserMemory::UserMemory(const std::string& kind) {
  if (kind == "host") return;
  if (kind.starts_with("cuda")) {
    device_ = std::make_unique<CudaTestDevice>(cuda::FakeOptions{.seed = 11});
  } else {
    ANNULUS_CHECK(kind.starts_with("sim"));
    device_ = std::make_unique<SimDevice>(
        SimDeviceOptions{.seed = 11, .max_time = 20 * kMicrosecond, .has_thread = kind == "sim_wakes"});
  }
  inputs_ = kind.find("_out") == std::string::npos;
  outputs_ = kind.find("_in") == std::string::npos;
  c_api::OfProcess().domains.Add(device_->domain());
}

UserMemory::~UserMemory() {
  if (device_ != nullptr) c_api::OfProcess().domains.Remove(device_->domain());
}

}  // namespace annulus
