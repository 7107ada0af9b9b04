// Transport over a SimWorld. An address is "sim:" and the rank.
//
// Threads: one.
#include <string>
#include <utility>

#include "transport/sim/sim.h"

namespace annulus {
namespace {

std::string AddressOf(int rank) { return "sim:" + std::to_string(rank); }

class SimTransport final : public Transport {
 public:
  SimTransport(SimWorld* world, int rank) : world_(world), rank_(rank) {}

  const char* Name() const override { return "sim"; }
  Status Probe() const override { return Status(); }

  Status LocalAddress(std::string* address) override {
    *address = AddressOf(rank_);
    return Status();
  }

  Status Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                 std::vector<std::unique_ptr<Endpoint>>* endpoints) override {
    std::vector<std::unique_ptr<Endpoint>> made;
    for (const LinkRequest& link : links) {
      if (link.peer < 0 || link.peer >= world_->options().nranks || link.peer == rank_ ||
          link.address != AddressOf(link.peer)) {
        return {Code::kInvalidArgument, "no simulated rank " + std::to_string(link.peer) + " at '" + link.address + "'",
                link.peer, 0};
      }
      if (world_->HasEndpoint(rank_, link.peer, link.channel)) {
        return Status::Invalid("channel " + std::to_string(link.channel) + " to rank " + std::to_string(link.peer) +
                               " is connected already");
      }
      made.push_back(world_->MakeEndpoint(rank_, link.peer, link.channel));
    }
    *endpoints = std::move(made);
    return Status();
  }

 private:
  SimWorld* const world_;
  const int rank_;
};

}  // namespace

std::unique_ptr<Transport> CreateSimTransport(SimWorld* world, int rank) {
  return std::make_unique<SimTransport>(world, rank);
}

}  // namespace annulus
