// The contract suite on verbs, over the simulated provider; and that no test of it made the provider see a mistake.
#include <gtest/gtest.h>

#include "tests/transport/contract/contract.h"
#include "tests/transport/verbs/no_mistakes.h"
#include "tests/verbs/provider/simulated_port.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_format.h"

namespace annulus {
namespace {

std::unique_ptr<Transport> Make(const SimulatedMachine& machine, const TransportConfig& config,
                                const SimulatedPort& port = {}) {
  SimulatedVerbs::SetMachine(machine);
  SetPortOfThisThread(port);
  return CreateVerbsTransportOver(SimulatedVerbs::Api(), "", config);
}

std::unique_ptr<Transport> MakePlain(TransportConfig config) { return Make({}, config); }

// Headers alone, or nothing, fit into a request.
std::unique_ptr<Transport> MakeInlineHeaders(TransportConfig config) {
  return Make({.most_inline_bytes = kVerbsHeaderBytes}, config);
}
std::unique_ptr<Transport> MakeNothingInline(TransportConfig config) { return Make({.most_inline_bytes = 0}, config); }

// Each end has an InfiniBand port of its own.
std::unique_ptr<Transport> MakeInfiniband(TransportConfig config) {
  return Make({}, config, {.infiniband = true, .lid = static_cast<uint16_t>(1 + config.rank)});
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Verbs, EndpointContract,
                         ::testing::Values(TransportBackend("Plain", MakePlain),
                                           TransportBackend("InlineHeaders", MakeInlineHeaders),
                                           TransportBackend("NothingInline", MakeNothingInline),
                                           TransportBackend("Infiniband", MakeInfiniband)),
                         BackendName);

}  // namespace annulus
