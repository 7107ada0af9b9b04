// ProcessState: the state that Annulus keeps for the whole process. The C API owns it, because its handles, its
// registered memory and its memory domains belong to no communicator. Communicators get references to it.
//
// The log level belongs to the process too; it is kept where it is used (base/log.h), and annulus_comm_create sets it.
// CONTRIBUTING.md lists the few other things that are kept where they are used.
//
// Threads: any.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "collectives/calls/request_table.h"
#include "collectives/cuda/cuda_allocations.h"
#include "collectives/cuda/cuda_domain.h"
#include "collectives/reduce/memory_domains.h"
#include "transport/memory/memory.h"

namespace annulus::c_api {

struct ProcessState {
  // Adds the memory of GPUs to the domains, if the program has loaded CUDA's driver. Looks once, when the first
  // communicator is made: the list must not change while communicators use it.
  void FindDevices();

  // Allocates memory of a GPU. Errors: kUnsupported  there is no driver; those of CudaAllocations.
  Status AllocateOn(int device, size_t bytes, void** memory);

  // Uses a GPU before the first buffer on it. Errors: kUnsupported  there is no driver; those of CudaDomain::Use.
  // They name the setting.
  Status UseDevice(int number);

  RequestTable requests;
  MemoryRegistry memory;
  MemoryDomains domains;  // Host memory only, until somebody adds a device before the first communicator.
  std::once_flag looked_for_devices;
  std::unique_ptr<CudaDomain> cuda;  // Null: the program had no driver.
  pid_t cuda_process = 0;            // That which has it: a forked child does not.
  CudaAllocations gpu_memory;
  std::string why_no_cuda;  // Why there is none that can be used; "" when there is one.
};

// Never destroyed: handles may be looked up, and memory freed, while the process ends. Made on first use; a look at the
// pointer costs less than at the guard of a static variable.
extern std::atomic<ProcessState*> process_state;
ProcessState& MakeOfProcess();
inline ProcessState& OfProcess() {
  ProcessState* const state = process_state.load(std::memory_order_acquire);
  return state != nullptr ? *state : MakeOfProcess();
}

}  // namespace annulus::c_api
