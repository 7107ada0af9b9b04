// The C API: registered memory, and the memory use of a communicator.

#include "collectives/annulus.h"
#include "collectives/api/c_api.h"
#include "collectives/api/process_state.h"
#include "collectives/api/structs.h"
#include "collectives/comm/communicator.h"

namespace {

using annulus::Communicator;
using annulus::c_api::Guarded;
using annulus::c_api::OfProcess;
using annulus::c_api::Outcome;
using annulus::c_api::Reject;
using annulus::c_api::Unwrap;

}  // namespace

annulus_status_t annulus_mem_alloc(size_t bytes, void** memory) {
  if (memory != nullptr) *memory = nullptr;
  return Guarded([&] { return Outcome(OfProcess().memory.Allocate(bytes, memory)); });
}

annulus_status_t annulus_mem_free(void* memory) {
  if (memory == nullptr) return ANNULUS_OK;
  return Guarded([&] { return Outcome(OfProcess().memory.Free(memory)); });
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
    return Outcome(annulus::c_api::GiveStruct(full, "annulus_memory_t", memory));
  });
}
