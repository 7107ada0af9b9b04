// The contract suite on shared memory: as tests ask, in few small slots, in the default ones, and two ends on one
// mapping.
#include "tests/transport/contract.h"
#include "tests/transport/shm_pair.h"
#include "transport/shm/shm.h"

namespace annulus {
namespace {

std::unique_ptr<Transport> FewSlots(TransportConfig config) {
  config.slots = 2;
  return CreateShmTransport(config);
}

std::unique_ptr<Transport> DefaultSlots(TransportConfig config) {
  const TransportConfig defaults;
  config.slots = defaults.slots;
  config.slot_bytes = std::max(config.slot_bytes, defaults.slot_bytes);
  return CreateShmTransport(config);
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Shm, EndpointContract,
                         ::testing::Values(TransportBackend("few_slots", FewSlots),
                                           TransportBackend("default_slots", DefaultSlots),
                                           ContractBackend{"one_mapping", ShmPair::Open}),
                         BackendName);

}  // namespace annulus
