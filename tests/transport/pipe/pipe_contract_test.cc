// The contract suite on the pipe transport.
#include "tests/transport/contract/contract.h"
#include "tests/transport/pipe/pipe.h"

namespace annulus {

INSTANTIATE_TEST_SUITE_P(Pipe, EndpointContract, ::testing::Values(TransportBackend("Plain", CreatePipeTransport)),
                         BackendName);

}  // namespace annulus
