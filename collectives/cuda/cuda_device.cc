#include "collectives/cuda/cuda_device.h"

#include <utility>

namespace annulus {

using cuda::DeviceAttribute;
using cuda::ScopedContext;

Status CudaDevice::Open(const cuda::Driver& driver, int ordinal, std::span<const std::byte> image,
                        std::unique_ptr<CudaDevice>* device) {
  std::unique_ptr<CudaDevice> opened(new CudaDevice(driver, ordinal));
  ANNULUS_RETURN_IF_ERROR(opened->RetainContext());
  const Status status = opened->LoadKernels(image);
  if (!status.ok()) opened->kernels_missing_ = status.message();
  *device = std::move(opened);
  return Status();
}

CudaDevice::~CudaDevice() {
  if (primary_.context == nullptr) return;
  {
    const DeviceScope scope(*this);
    if (scope.status().ok() && library_ != nullptr) driver_->LibraryUnload(library_);
  }
  driver_->DevicePrimaryCtxRelease(handle_);  // A reset does not release it.
}

Status CudaDevice::RetainContext() {
  int major = 0;
  int minor = 0;
  int shares_pointers = 0;
  int waits_for_64_bits = 0;
  std::array<char, 128> name{};
  const cuda::RelaxedCapture relaxed(driver_);
  ANNULUS_RETURN_IF_ERROR(driver_.ToStatus(driver_->DeviceGet(&handle_, ordinal_), "cuDeviceGet"));
  ANNULUS_RETURN_IF_ERROR(
      driver_.ToStatus(driver_->DevicePrimaryCtxRetain(&primary_.context, handle_), "cuDevicePrimaryCtxRetain"));
  if (driver_->CtxGetId != nullptr && driver_->CtxGetId(primary_.context, &primary_.id) != cuda::Result::kSuccess)
    primary_.id = 0;
  driver_->DeviceGetAttribute(&multiprocessors_, DeviceAttribute::kMultiprocessors, handle_);
  driver_->DeviceGetAttribute(&major, DeviceAttribute::kComputeCapabilityMajor, handle_);
  driver_->DeviceGetAttribute(&minor, DeviceAttribute::kComputeCapabilityMinor, handle_);
  FindRdma();
  driver_->DeviceGetAttribute(&waits_for_64_bits, DeviceAttribute::kCanUse64BitWords, handle_);
  waits_for_64_bits_ = waits_for_64_bits != 0;
  driver_->DeviceGetAttribute(&shares_pointers, DeviceAttribute::kCanUseHostPointerForRegisteredMemory, handle_);
  ANNULUS_RETURN_IF_ERROR(driver_.ToStatus(driver_->DeviceGetUuid(&uuid_, handle_), "cuDeviceGetUuid"));
  driver_->DeviceGetName(name.data(), static_cast<int>(name.size()) - 1, handle_);
  capability_ = 10 * major + minor;
  name_ = std::string(name.data()) + " (sm_" + std::to_string(capability_) + ")";
  if (shares_pointers != 0) return Status();
  return {Code::kUnsupported, name_ + " does not see pinned memory at the addresses of the CPU"};
}

// Other errors, as at the end of the process, say nothing of the context.
bool CudaDevice::IsReset() const {
  if (primary_.id == 0 || is_known_reset()) return is_known_reset();
  unsigned long long id = 0;
  const cuda::Result result = driver_->CtxGetId(primary_.context, &id);
  const bool is_other = result == cuda::Result::kSuccess && id != primary_.id;
  if (is_other || result == cuda::Result::kContextIsDestroyed || result == cuda::Result::kInvalidContext)
    primary_.is_reset.store(true, std::memory_order_release);
  return is_known_reset();
}

Status CudaDevice::WhyReset() const {
  return {Code::kSystem, "GPU " + std::to_string(ordinal_) + ", " + name_ +
                             ", was reset (cudaDeviceReset) after this communicator had begun to use it: destroy the "
                             "communicator and make a new one"};
}

void CudaDevice::FindRdma() {
  int exports = 0;
  int seen_by = 0;
  int flushes = 0;
  driver_->DeviceGetAttribute(&exports, DeviceAttribute::kDmaBufSupported, handle_);
  driver_->DeviceGetAttribute(&seen_by, DeviceAttribute::kRdmaWritesOrdering, handle_);
  driver_->DeviceGetAttribute(&flushes, DeviceAttribute::kRdmaFlushOptions, handle_);
  exports_memory_ = exports != 0;
  if ((flushes & cuda::kRdmaFlushByHost) != 0) rdma_writes_ = RdmaWrites::kFlushed;
  if (seen_by >= static_cast<int>(cuda::RdmaScope::kOwner)) rdma_writes_ = RdmaWrites::kSeen;
}

Status CudaDevice::LoadKernels(std::span<const std::byte> image) {
  if (image.empty()) return {Code::kUnsupported, "this build of Annulus has no device kernels"};
  const ScopedContext scope(driver_, primary_.context);
  ANNULUS_RETURN_IF_ERROR(scope.status());
  ANNULUS_RETURN_IF_ERROR(
      driver_.ToStatus(driver_->LibraryLoadData(&library_, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                       "cuLibraryLoadData"));
  decltype(kernels_) kernels{};
  for (int type = 0; type < kNumDataTypes; ++type) {
    for (int op = 0; op < kNumReduceOps; ++op) {
      if (!cuda::HasKernel(static_cast<DataType>(type), static_cast<ReduceOp>(op))) continue;
      const std::string name = cuda::KernelName(static_cast<DataType>(type), static_cast<ReduceOp>(op));
      cuda::Kernel kernel = nullptr;
      cuda::Function* const function = &kernels[static_cast<size_t>(type)][static_cast<size_t>(op)];
      ANNULUS_RETURN_IF_ERROR(
          driver_.ToStatus(driver_->LibraryGetKernel(&kernel, library_, name.c_str()), "cuLibraryGetKernel"));
      ANNULUS_RETURN_IF_ERROR(driver_.ToStatus(driver_->KernelGetFunction(function, kernel), "cuKernelGetFunction"));
      ANNULUS_RETURN_IF_ERROR(driver_.ToStatus(driver_->FuncLoad(*function), "cuFuncLoad"));
    }
  }
  kernels_ = kernels;
  return Status();
}

cuda::Function CudaDevice::KernelFor(DataType type, ReduceOp op) const {
  if (op == ReduceOp::kAvg) op = ReduceOp::kSum;
  if (static_cast<int>(op) >= kNumReduceOps) return nullptr;
  return kernels_[static_cast<size_t>(type)][static_cast<size_t>(op)];
}

}  // namespace annulus
