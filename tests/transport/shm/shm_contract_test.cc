// The contract suite on shared memory: as tests ask, in few small slots, in the default ones, and two ends on one
// mapping.
#include <algorithm>

#include "tests/transport/contract/contract.h"
#include "tests/transport/shm/shm_pair.h"
#include "transport/shm/shm.h"

namespace annulus {
namespace {

std::unique_ptr<Transport> FewSlots(TransportConfig config) {
  config.slots = 2;
  return CreateShmTransport(config);
}

std::unique_ptr<Transport> ManySlots(TransportConfig config) {
  config.slots = TransportConfig().slots;
  config.slot_bytes = std::max<size_t>(config.slot_bytes, 32 * 1024);
  return CreateShmTransport(config);
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Shm, EndpointContract,
                         ::testing::Values(TransportBackend("few_slots", FewSlots),
                                           TransportBackend("many_slots", ManySlots),
                                           ContractBackend{"one_mapping", ShmPair::Open}),
                         BackendName);

}  // namespace annulus
