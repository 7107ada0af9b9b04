// The C API: registered memory, the memory use of a communicator, and how it works on device memory.

#include "collectives/annulus.h"
#include "collectives/api/c_api.h"
#include "collectives/api/process_state.h"
#include "collectives/api/structs.h"
#include "collectives/comm/communicator.h"

namespace {

using annulus::Communicator;
using annulus::CudaReport;
using annulus::c_api::Guarded;
using annulus::c_api::OfProcess;
using annulus::c_api::Outcome;
using annulus::c_api::Reject;
using annulus::c_api::Unwrap;

static_assert(static_cast<int>(CudaReport::Path::kNone) == ANNULUS_PATH_NONE);
static_assert(static_cast<int>(CudaReport::Path::kStaged) == ANNULUS_PATH_STAGED);
static_assert(static_cast<int>(CudaReport::Path::kKernels) == ANNULUS_PATH_KERNELS);

}  // namespace

annulus_status_t annulus_mem_alloc(size_t bytes, void** memory) {
  if (memory != nullptr) *memory = nullptr;
  return Guarded([&] { return Outcome(OfProcess().memory.Allocate(bytes, memory)); });
}

annulus_status_t annulus_mem_alloc_device(size_t bytes, int device, void** memory) {
  if (memory == nullptr) return Reject("memory is null");
  *memory = nullptr;
  return Guarded([&] { return Outcome(OfProcess().AllocateOn(device, bytes, memory)); });
}

annulus_status_t annulus_mem_free(void* memory) {
  if (memory == nullptr) return ANNULUS_OK;
  return Guarded([&] {
    if (OfProcess().gpu_memory.Free(memory)) return Outcome(annulus::Status());
    return Outcome(OfProcess().memory.Free(memory));
  });
}

annulus_status_t annulus_mem_register(void* memory, size_t bytes) {
  return Guarded([&] { return Outcome(OfProcess().memory.Register(memory, bytes)); });
}

annulus_status_t annulus_mem_deregister(void* memory) {
  return Guarded([&] { return Outcome(OfProcess().memory.Deregister(memory)); });
}

annulus_status_t annulus_comm_memory(const annulus_comm_t* comm, annulus_memory_t* memory) {
  if (comm == nullptr || memory == nullptr) return Reject(comm == nullptr ? "comm is null" : "memory is null");
  return Guarded([&] {
    const annulus::MemoryUse use = Unwrap(comm)->Memory();
    annulus_memory_t full{};
    full.staging = use.staging;
    full.links = use.links;
    full.work = use.work;
    full.requests = use.requests;
    full.total = use.total();
    full.budget = static_cast<uint64_t>(Unwrap(comm)->options().memory_bytes);
    full.registered = OfProcess().memory.bytes();
    full.peers_mapped = use.peers_mapped;
    full.gpu = use.gpu;
    return Outcome(annulus::c_api::FillStruct(full, "annulus_memory_t", memory));
  });
}

annulus_status_t annulus_comm_device(const annulus_comm_t* comm, annulus_device_t* device) {
  if (comm == nullptr || device == nullptr) return Reject(comm == nullptr ? "comm is null" : "device is null");
  return Guarded([&] {
    const annulus::c_api::ProcessState& process = OfProcess();
    CudaReport report;
    report.why = process.why_no_cuda.c_str();
    const Communicator* const communicator = Unwrap(comm);
    if (process.cuda != nullptr)
      report = process.cuda->Report(communicator->options().device_reduce, communicator->links());
    annulus_device_t full{};
    full.driver = report.driver;
    full.path = static_cast<int32_t>(report.path);
    full.number = report.number;
    full.capability = report.capability;
    full.name = report.name;
    full.why = report.why;
    return Outcome(annulus::c_api::FillStruct(full, "annulus_device_t", device));
  });
}
