// The contract suite on the sim backend: streams, slots, and windows smaller than a slice.
#include "tests/transport/contract/contract.h"
#include "transport/sim/sim.h"

namespace annulus {
namespace {

// Two simulated ranks; Pass() goes to the next virtual event.
class SimContractLink final : public ContractLink {
 public:
  explicit SimContractLink(const SimOptions& options) : world_(options) {
    for (int side = 0; side < 2; ++side) transports_[side] = CreateSimTransport(&world_, side);
    for (int side = 0; side < 2; ++side) Connect(side);
  }

  Endpoint& end(int side) override { return *ends_[side]; }
  void Sever(int side) override { ends_[side].reset(); }
  void Pass() override { world_.AdvanceToNextEvent(); }
  Reactor* reactor(int) override { return nullptr; }

 private:
  void Connect(int side) {
    LinkRequest request{.peer = 1 - side, .channel = 0, .same_host = true, .address = {}};
    EXPECT_TRUE(transports_[1 - side]->LocalAddress(&request.address).ok());
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    EXPECT_TRUE(transports_[side]->Connect({&request, 1}, {}, &endpoints).ok());
    ends_[side] = std::move(endpoints.at(0));
  }

  SimWorld world_;
  std::unique_ptr<Transport> transports_[2];
  std::unique_ptr<Endpoint> ends_[2];
};

// `narrow` makes the window of a stream smaller than a slice.
ContractBackend SimBackend(std::string name, SimOptions base, bool narrow = false) {
  return {std::move(name), [base, narrow](const LinkOptions& options) -> std::unique_ptr<ContractLink> {
            SimOptions sim = base;
            sim.slot_bytes = options.slot_bytes;
            sim.slots = options.slots;
            if (narrow) sim.window_bytes = options.slot_bytes / 8;
            return std::make_unique<SimContractLink>(sim);
          }};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Sim, EndpointContract,
                         ::testing::Values(SimBackend("stream", {.seed = 1, .kind = SimKind::kStream}),
                                           SimBackend("narrow", {.seed = 2, .kind = SimKind::kStream}, true),
                                           SimBackend("slots", {.seed = 3, .kind = SimKind::kSlots})),
                         BackendName);

}  // namespace annulus
