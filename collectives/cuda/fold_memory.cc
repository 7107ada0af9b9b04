#include "collectives/cuda/fold_memory.h"

#include "collectives/reduce/stream_program.h"

namespace annulus {
namespace {

constexpr size_t kCountersBytes = StreamProgram::kMostFolds * sizeof(uint32_t);

}  // namespace

Status FoldMemory::Open(CudaDomain* domain, const CudaDevice& device, size_t bytes,
                        std::shared_ptr<FoldMemory>* memory) {
  if (!device.kernels_missing().empty()) return {Code::kUnsupported, device.kernels_missing()};
  std::shared_ptr<FoldMemory> opened(new FoldMemory(domain, device, bytes));
  const cuda::ScopedContext scope(device.driver(), device.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  ANNULUS_RETURN_IF_ERROR(opened->Create());
  *memory = std::move(opened);
  return Status();
}

Status FoldMemory::Create() {
  const cuda::Driver& driver = device_.driver();
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->MemAlloc(&memory_, bytes_), "cuMemAlloc"));
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->MemAlloc(&counter_memory_, kCountersBytes), "cuMemAlloc"));
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver->EventCreate(&turn, cuda::kEventWithoutTime), "cuEventCreate"));
  counters = cuda::FromDevice<uint32_t>(counter_memory_);
  if (sharing_.Export(cuda::FromDevice(memory_), bytes_, &place_) < 0)
    return {Code::kUnsupported, "other processes cannot reach the memory of " + device_.name()};
  // The first to have a turn waits for this; nobody else does.
  cuda::Stream stream = nullptr;
  ANNULUS_RETURN_IF_ERROR(
      ToStatus(driver->StreamCreateWithPriority(&stream, cuda::kStreamNonBlocking, 0), "cuStreamCreateWithPriority"));
  Status status = ToStatus(driver->MemsetD8Async(counter_memory_, 0, kCountersBytes, stream), "cuMemsetD8Async");
  if (status.ok()) status = ToStatus(driver->EventRecord(turn, stream), "cuEventRecord");
  driver->StreamDestroy(stream);
  return status;
}

FoldMemory::~FoldMemory() {
  const cuda::Driver& driver = device_.driver();
  const DeviceScope scope(device_);
  // The context is gone, and with it all that was in it.
  if (!scope.status().ok()) return;
  if (turn != nullptr) driver->EventDestroy(turn);
  if (counter_memory_ != 0) driver->MemFree(counter_memory_);
  if (memory_ != 0) driver->MemFree(memory_);
}

Status FoldMemory::Reach(std::span<const SharedPlace> places, std::vector<std::byte*>* memory) {
  memory->assign(places.size(), nullptr);
  for (size_t i = 0; i < places.size(); ++i)
    ANNULUS_RETURN_IF_ERROR(sharing_.Import(device_.ordinal(), places[i], bytes_, &(*memory)[i]));
  return Status();
}

}  // namespace annulus
