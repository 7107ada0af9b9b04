// A connected pair of endpoints of any backend, as the contract suite (contract.h) drives it.
//
// Threads: as the endpoints; each side may be driven by a thread of its own unless the link lives on virtual time.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/transport/contract/contract_traffic.h"
#include "transport/reactor.h"
#include "transport/transport.h"

namespace annulus {

// No test waits longer than this for anything; far above what a loaded machine under a sanitizer needs.
constexpr Nanoseconds kContractPatience = 60 * kSecond;

// Closes `end` and lets what it has sent reach the peer.
inline void CloseWholly(Endpoint& end) {
  while (!end.Close()) sched_yield();
}

struct LinkOptions {
  size_t slot_bytes = 4096;
  int slots = 4;
};

// Side 0 is rank 0 and side 1 is rank 1.
class ContractLink {
 public:
  virtual ~ContractLink() = default;
  virtual Endpoint& end(int side) = 0;
  // What happens to the link when the process of `side` dies: no Close(), no goodbye. end(side) is gone afterwards.
  virtual void Sever(int side) = 0;
  // Lets time pass after a round in which neither end moved.
  virtual void Pass() = 0;
  // Where `side` sleeps. Null when the link lives on virtual time, where nobody sleeps.
  virtual Reactor* reactor(int side) = 0;
};

// What a backend passes to INSTANTIATE_TEST_SUITE_P.
struct ContractBackend {
  std::string name;
  // Returns null, with a test failure added, when the two ends could not be connected.
  std::function<std::unique_ptr<ContractLink>(const LinkOptions&)> connect;
};

inline void PrintTo(const ContractBackend& backend, std::ostream* out) { *out << backend.name; }

inline std::string BackendName(const ::testing::TestParamInfo<ContractBackend>& info) { return info.param.name; }

// A pair of Transports in one process, connected by their own LocalAddress() and Connect().
class TransportLink final : public ContractLink {
 public:
  // Makes the transport of one rank; may change the configuration first.
  using MakeTransport = std::function<std::unique_ptr<Transport>(TransportConfig)>;
  // Ends an endpoint as its process's death would. Null: destroying it without Close() comes to the same.
  using Kill = std::function<void(std::unique_ptr<Endpoint>)>;

  static std::unique_ptr<ContractLink> Open(const MakeTransport& make, const Kill& kill, const LinkOptions& options) {
    auto link = std::make_unique<TransportLink>();
    link->kill_ = kill;
    std::string addresses[2];
    for (int side = 0; side < 2; ++side) {
      TransportConfig config;
      config.rank = side;
      config.nranks = 2;
      config.job_key = "the contract suite's job key";
      config.slot_bytes = options.slot_bytes;
      config.slots = options.slots;
      config.local_host = "127.0.0.1";
      config.reactor = &link->reactors_[side];
      config.memory = &TestRegistry();
      link->transports_[side] = make(config);
      const Status status = link->transports_[side]->LocalAddress(&addresses[side]);
      if (!status.ok()) {
        ADD_FAILURE() << "LocalAddress of rank " << side << ": " << status.ToString();
        return nullptr;
      }
      EXPECT_LE(addresses[side].size(), 256u);
    }
    return link->Connect(addresses) ? std::move(link) : nullptr;
  }

  ~TransportLink() override {
    for (auto& endpoint : endpoints_) endpoint.reset();
    for (auto& transport : transports_) transport.reset();
  }

  Endpoint& end(int side) override { return *endpoints_[side]; }
  void Sever(int side) override {
    if (kill_) kill_(std::move(endpoints_[side]));
    endpoints_[side].reset();
  }
  void Pass() override { sched_yield(); }
  Reactor* reactor(int side) override { return &reactors_[side]; }

 private:
  bool Connect(const std::string (&addresses)[2]) {
    Status statuses[2];
    ConnectContext context;
    context.identity.job = static_cast<uint64_t>(getpid());
    context.deadline = DeadlineAfter(kContractPatience);
    auto connect = [&](int side) {
      const LinkRequest request{.peer = 1 - side, .channel = 0, .same_host = true, .address = addresses[1 - side]};
      std::vector<std::unique_ptr<Endpoint>> endpoints;
      statuses[side] = transports_[side]->Connect({&request, 1}, context, &endpoints);
      if (statuses[side].ok() && endpoints.size() == 1) endpoints_[side] = std::move(endpoints[0]);
    };
    std::thread other(connect, 1);
    connect(0);
    other.join();
    for (int side = 0; side < 2; ++side) {
      EXPECT_NE(endpoints_[side], nullptr) << "Connect of rank " << side << ": " << statuses[side].ToString();
    }
    return endpoints_[0] != nullptr && endpoints_[1] != nullptr;
  }

  Reactor reactors_[2];  // First: it outlives the transports.
  Kill kill_;
  std::unique_ptr<Transport> transports_[2];
  std::unique_ptr<Endpoint> endpoints_[2];
};

// The ContractBackend of a Transport that connects over real time.
inline ContractBackend TransportBackend(std::string name, TransportLink::MakeTransport make,
                                        TransportLink::Kill kill = nullptr) {
  return {std::move(name), [make = std::move(make), kill = std::move(kill)](const LinkOptions& options) {
            return TransportLink::Open(make, kill, options);
          }};
}

}  // namespace annulus
