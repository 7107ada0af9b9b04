// The pipe transport: what it says of itself, and how its links are made of authenticated UNIX sockets.
//
// Threads: as transport/transport.h says.
#include <sys/random.h>

#include <asio/local/stream_protocol.hpp>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/pipe/pipe.h"
#include "tests/transport/pipe/pipe_endpoint.h"
#include "transport/reactor.h"
#include "transport/security/connector.h"

namespace annulus {
namespace {

// Numbers that no other transport has, so that tests find them again.
LinkCosts Costs(const LinkPlace& place) {
  const double message_s = place.ranks_per_core > 1 ? 9e-6 : 6e-6;
  return {.latency_s = 4.321e-6, .byte_s = 1e-10, .message_s = message_s, .reduce_byte_s = 2e-11, .move_byte_s = 3e-10};
}

size_t LinkMemoryBytes(const TransportConfig& config) {
  return 2 * PipeSlots::Bytes(config.slot_bytes, config.slots) + sizeof(PipeEndpoint);
}

// In the abstract namespace of UNIX sockets, which a zero byte marks.
StreamEndpoint EndpointOf(const std::string& name) {
  return asio::local::stream_protocol::endpoint(std::string(1, '\0') + name);
}

class PipeTransport final : public Transport {
 public:
  explicit PipeTransport(const TransportConfig& config) : config_(config) {}

  const char* Name() const override { return kPipeTransport.name; }
  Status Probe() const override { return Status(); }
  Status LocalAddress(std::string* address) override;
  Status Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                 std::vector<std::unique_ptr<Endpoint>>* endpoints) override;

 private:
  bool Dials(const LinkRequest& link) const { return link.peer < config_.rank; }

  const TransportConfig config_;
  std::optional<StreamListener> listener_;
};

Status PipeTransport::LocalAddress(std::string* address) {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) return Status::System("getrandom", errno);
  *address = "annulus-pipe-" + std::to_string(number);
  listener_.emplace(config_.reactor->context());
  return Listen(config_.reactor, EndpointOf(*address), nullptr, &*listener_);
}

Status PipeTransport::Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                              std::vector<std::unique_ptr<Endpoint>>* endpoints) {
  ConnectPlan plan;
  plan.hello.purpose = {kPipeTransport.hello_purpose, kPipeTransport.title};
  plan.hello.identity = context.identity;
  plan.hello.nranks = static_cast<uint32_t>(config_.nranks);
  plan.hello.rank = static_cast<uint32_t>(config_.rank);
  plan.key = config_.job_key;
  plan.listener = &*listener_;
  plan.deadline = context.deadline;
  plan.give_up = context.give_up;
  for (const LinkRequest& link : links) {
    const StreamId id{static_cast<uint32_t>(link.peer), static_cast<uint16_t>(link.channel), 0};
    if (Dials(link)) {
      plan.dials.push_back({id, {EndpointOf(link.address)}});
    } else {
      plan.expected.push_back(id);
    }
  }
  std::vector<Stream> streams;
  const Status status = EstablishStreams(config_.reactor, plan, &streams);
  listener_.reset();
  ANNULUS_RETURN_IF_ERROR(status);
  size_t dialled = 0;
  size_t accepted = plan.dials.size();
  for (const LinkRequest& link : links) {
    StreamSocket& socket = streams[Dials(link) ? dialled++ : accepted++].socket;
    endpoints->push_back(std::make_unique<PipeEndpoint>(config_, link.peer, std::move(socket)));
  }
  return Status();
}

}  // namespace

constinit const TransportInfo kPipeTransport = {
    .name = "pipe",
    .title = "pipes",
    .same_host_only = true,
    .needs_device = false,
    .in_clear = false,
    .by_system_calls = true,
    .hello_purpose = 255,
    .networks = nullptr,
    .cost_settings = {},
    .costs = Costs,
    .link_memory = LinkMemoryBytes,
    .create = CreatePipeTransport,
};

std::unique_ptr<Transport> CreatePipeTransport(const TransportConfig& config) {
  return std::make_unique<PipeTransport>(config);
}

}  // namespace annulus
