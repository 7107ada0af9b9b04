// The contract suite on the RDMA device of this machine. Not a test by itself, because few machines have one:
// tests/verbs/lab runs it on soft-RoCE.
#include "tests/transport/contract/contract.h"
#include "transport/verbs/verbs.h"

namespace annulus {

INSTANTIATE_TEST_SUITE_P(Verbs, EndpointContract, ::testing::Values(TransportBackend("Device", CreateVerbsTransport)),
                         BackendName);

}  // namespace annulus
