// The contract suite on verbs, over the simulated provider; and that no test of it made the provider see a mistake.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/transport/contract/contract.h"
#include "tests/transport/verbs/no_mistakes.h"
#include "tests/verbs/provider/simulated_port.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/verbs.h"

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

// Several rails: of three devices, and of two ports of a device, which the ends name in different orders.
std::unique_ptr<Transport> MakeRails(const SimulatedMachine& machine, const char* ports, TransportConfig config) {
  config.settings.Set("verbs_device", std::string(ports));
  return Make(machine, config);
}
std::unique_ptr<Transport> MakeThreeRails(TransportConfig config) {
  return MakeRails({.devices = 3}, "sim0,sim1,sim2", std::move(config));
}
std::unique_ptr<Transport> MakeTwoPorts(TransportConfig config) {
  return MakeRails({.ports = 2}, config.rank == 0 ? "sim0:1,sim0:2" : "sim0:2,sim0:1", config);
}

// Slices of registered memory are read by the receiver, into registered memory.
std::unique_ptr<Transport> MakeReads(const SimulatedMachine& machine, const char* ports, TransportConfig config) {
  config.settings.Set("verbs_read_bytes", int64_t{1000});
  return MakeRails(machine, ports, std::move(config));
}
std::unique_ptr<Transport> MakeManyReads(TransportConfig config) { return MakeReads({}, "", std::move(config)); }
std::unique_ptr<Transport> MakeOneRead(TransportConfig config) {
  return MakeReads({.most_reads = 1}, "", std::move(config));
}
std::unique_ptr<Transport> MakeNoReads(TransportConfig config) {
  return MakeReads({.most_reads = 0}, "", std::move(config));
}
std::unique_ptr<Transport> MakeReadsOnRails(TransportConfig config) {
  return MakeReads({.devices = 3, .most_reads = 2}, "sim0,sim1,sim2", std::move(config));
}
}  // namespace

INSTANTIATE_TEST_SUITE_P(
    Verbs, EndpointContract,
    FirstUnderThreads(3, {TransportBackend("Plain", MakePlain), TransportBackend("ThreeRails", MakeThreeRails),
                          TransportBackend("ReadsOnRails", MakeReadsOnRails),
                          TransportBackend("InlineHeaders", MakeInlineHeaders),
                          TransportBackend("NothingInline", MakeNothingInline),
                          TransportBackend("Infiniband", MakeInfiniband), TransportBackend("TwoPorts", MakeTwoPorts),
                          TransportBackend("Reads", MakeManyReads), TransportBackend("OneRead", MakeOneRead),
                          TransportBackend("NoReads", MakeNoReads)}),
    BackendName);

}  // namespace annulus
