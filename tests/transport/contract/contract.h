// The contract suite: every rule of transport/transport.h that an Endpoint must keep, as tests for any backend.
//
// A backend joins with one test file that includes this header, depends on :contract, and says
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, EndpointContract, ::testing::Values(TransportBackend("plain", MakeTcp)),
//   BackendName);
//
// inside namespace annulus, where MakeTcp is a std::unique_ptr<Transport>(TransportConfig). Several configurations of
// one backend are several values. docs/transport_contract.md pairs rules with tests.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_fixture.h"

namespace annulus {

// For backends whose configurations have the same threads and the same shared state: the thread sanitizer's build takes
// the first `threaded` of them, which are to be those that differ most. The address sanitizer's takes all.
inline auto FirstUnderThreads(size_t threaded, std::vector<ContractBackend> all) {
  if (kThreadSanitized) all.resize(threaded);
  return ::testing::ValuesIn(all);
}

}  // namespace annulus
