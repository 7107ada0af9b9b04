// Sets up verbs links: authenticated TCP streams first, then queue pairs over each of them.
//
// Threads: as transport/transport.h says.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "transport/memory/slot_memory.h"
#include "transport/reactor.h"
#include "transport/readable_wait.h"
#include "transport/reconnect.h"
#include "transport/security/connector.h"
#include "transport/stream_socket.h"
#include "transport/verbs/device/verbs_device.h"
#include "transport/verbs/device/verbs_fork.h"
#include "transport/verbs/device/verbs_hub.h"
#include "transport/verbs/device/verbs_memory.h"
#include "transport/verbs/device/verbs_near.h"
#include "transport/verbs/device/verbs_network.h"
#include "transport/verbs/device/verbs_ports.h"
#include "transport/verbs/device/verbs_regions.h"
#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/rail/verbs_rail.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_connection.h"
#include "transport/verbs/verbs_endpoint.h"
#include "transport/verbs/verbs_handover.h"
#include "transport/verbs/verbs_settings.h"

namespace annulus {
namespace {

static_assert(kMostVerbsPorts == kMostVerbsRails);

// Smallest part of a slice that is sent before the rest is ready, in bytes: a slice needs no more than 16 parts, since
// each takes a receive and a message.
uint32_t LeastPart(size_t slot_bytes) { return static_cast<uint32_t>(std::max<size_t>(slot_bytes / 16, 1)); }

class VerbsTransport final : public Transport {
 public:
  VerbsTransport(const VerbsApi* api, std::string why, const TransportConfig& config)
      : api_(api), why_(std::move(why)), config_(config), listener_(config.reactor->context()) {}

  const char* Name() const override { return kVerbsTransport.name; }
  Status Probe() const override;
  Status LocalAddress(std::string* address) override;
  std::string Devices() const override { return devices_; }
  Status Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                 std::vector<std::unique_ptr<Endpoint>>* endpoints) override;

 private:
  using Handovers = std::vector<std::unique_ptr<VerbsHandover>>;

  bool Dials(const LinkRequest& link) const { return link.peer < config_.rank; }
  int slots() const { return std::min(config_.slots, kMostVerbsSlots); }
  // Completions of a link on one port at once: each request completes at most once, also when its queue pair fails. One
  // is of a keepalive.
  uint64_t LinkCompletions() const { return 2 * VerbsQueueDepth(slots()) + 1 + (reads() ? kMostVerbsReads : 0); }
  bool reads() const { return LeastRead() > 0; }
  uint32_t LeastRead() const { return static_cast<uint32_t>(config_.settings.Number("verbs_read_bytes")); }
  size_t LinkBytes(size_t rails) const { return VerbsEndpoint::MemoryBytes(slots(), config_.slot_bytes, rails, false); }
  Status FindPorts(VerbsPorts* found, std::string* left_out) const;
  Status AddLink(const LinkRequest& link, ConnectPlan* plan) const;
  Status EstablishSockets(std::span<const LinkRequest> links, const ConnectContext& context,
                          std::vector<Stream>* streams);
  Status OpenPorts(size_t links, std::vector<VerbsPort>* ports);
  VerbsConnectionConfig ConfigOfLinks() const;
  // Those of `ports` that reach the peer, in the order in which it has its own.
  std::vector<VerbsPort> PortsTo(const LinkRequest& link, const std::vector<VerbsPort>& ports) const;
  // `opened`: whether the devices gave what all links share; there are no ports when one did not.
  Status HandOver(std::span<const LinkRequest> links, const std::vector<VerbsPort>& ports, const Status& opened,
                  std::vector<Stream>* streams, Handovers* handovers) const;
  Status AwaitHandovers(std::vector<Stream>* streams, const ConnectContext& context, Handovers* handovers) const;

  const VerbsApi* const api_;  // Null: there is no library.
  const std::string why_;
  const TransportConfig config_;
  StreamListener listener_;
  VerbsPorts found_;      // Until Connect takes them.
  std::string networks_;  // As the peers know them.
  std::string devices_;   // As people do.
};

Status VerbsTransport::FindPorts(VerbsPorts* found, std::string* left_out) const {
  if (api_ == nullptr) return {Code::kUnsupported, why_};
  return annulus::FindPorts(api_, VerbsWish::Of(config_), found, left_out);
}

// Registers the memory of one link on trial, since the limit on locked memory is what most often is missing.
Status VerbsTransport::Probe() const {
  VerbsPorts found;
  std::string left_out;
  ANNULUS_RETURN_IF_ERROR(FindPorts(&found, &left_out));
  VerbsMemory memory(config_.slot_memory, LinkBytes(found.size()));
  for (auto& port : found) {
    const auto hub = std::make_shared<VerbsHub>(std::move(port), config_.reactor);
    Status opened = hub->Open(LinkCompletions(), found.size() * memory.bytes());
    ibv_mr* region = nullptr;
    if (opened.ok()) opened = memory.Register(hub, true, &region);
    if (!opened.ok()) return {Code::kUnsupported, opened.message()};
  }
  return Status();
}

Status VerbsTransport::LocalAddress(std::string* address) {
  StreamEndpoint local;
  if (config_.local_host.empty()) return Status::Invalid("no own address is known for the set-up of verbs links");
  ANNULUS_RETURN_IF_ERROR(MakeEndpoint(config_.local_host, 0, &local));
  std::string left_out;
  ANNULUS_RETURN_IF_ERROR(FindPorts(&found_, &left_out));
  if (!left_out.empty()) {
    Log(LogLevel::kWarn, config_.rank, "verbs links use %zu of the ports that ANNULUS_VERBS_DEVICE names: %s",
        found_.size(), left_out.c_str());
  }
  ANNULUS_RETURN_IF_ERROR(Listen(config_.reactor, local, nullptr, &listener_));
  asio::error_code error;
  const StreamEndpoint bound = listener_.local_endpoint(error);
  if (error) return Status::System("cannot read the listening socket's address", error.value());
  *address = VerbsAddress(EndpointText(bound), found_);
  networks_ = NetworksText(found_);
  devices_.clear();
  for (const auto& port : found_) {
    const int node = PlaceOf(*port->context()->device).numa_node;
    devices_ += (devices_.empty() ? "" : " and ") + port->Describe() +
                (node >= 0 && config_.gpu.empty() ? ", on NUMA node " + std::to_string(node) : "");
  }
  return Status();
}

Status VerbsTransport::AddLink(const LinkRequest& link, ConnectPlan* plan) const {
  ANNULUS_CHECK(link.peer != config_.rank && link.peer >= 0 && link.peer < config_.nranks);
  const StreamId id{static_cast<uint32_t>(link.peer), static_cast<uint16_t>(link.channel), 0};
  if (!Dials(link)) {
    plan->expected.push_back(id);
    return Status();
  }
  StreamEndpoint endpoint;
  if (!ParseEndpoint(std::string(EndpointOf(link.address)), &endpoint).ok()) {
    return {Code::kProtocol, "rank " + std::to_string(link.peer) + " announced a broken verbs address", link.peer, 0};
  }
  plan->dials.push_back({id, {endpoint}});
  return Status();
}

// Output: (*streams)[i] belongs to links[i].
Status VerbsTransport::EstablishSockets(std::span<const LinkRequest> links, const ConnectContext& context,
                                        std::vector<Stream>* streams) {
  ConnectPlan plan;
  plan.hello.purpose = {kVerbsTransport.hello_purpose, kVerbsTransport.title};
  plan.hello.identity = context.identity;
  plan.hello.nranks = static_cast<uint32_t>(config_.nranks);
  plan.hello.rank = static_cast<uint32_t>(config_.rank);
  plan.key = config_.job_key;
  plan.listener = &listener_;
  plan.deadline = context.deadline;
  plan.give_up = context.give_up;
  for (const LinkRequest& link : links) ANNULUS_RETURN_IF_ERROR(AddLink(link, &plan));
  std::vector<Stream> made;
  Status status = EstablishStreams(config_.reactor, plan, &made);
  asio::error_code ignored;
  listener_.close(ignored);
  ANNULUS_RETURN_IF_ERROR(std::move(status));
  size_t dialled = 0;
  size_t accepted = plan.dials.size();
  streams->clear();
  for (const LinkRequest& link : links) streams->push_back(std::move(made[Dials(link) ? dialled++ : accepted++]));
  return Status();
}

Status VerbsTransport::OpenPorts(size_t links, std::vector<VerbsPort>* ports) {
  if (found_.empty()) return Status::Invalid("verbs: Connect needs LocalAddress before it");
  // Each link registers its memory with each of the ports that it uses.
  const uint64_t locked_bytes = links * found_.size() * LinkBytes(found_.size());
  std::vector<std::shared_ptr<VerbsHub>> hubs;
  // Taken whole, so that none is left half used when one fails.
  for (auto& port : std::exchange(found_, {})) {
    auto hub = std::make_shared<VerbsHub>(std::move(port), config_.reactor);
    // A link has one queue pair here at most.
    ANNULUS_RETURN_IF_ERROR(hub->Open(links * LinkCompletions(), locked_bytes));
    hubs.push_back(std::move(hub));
  }
  VerbsGpuMemory gpus;
  if (config_.slot_memory != nullptr) gpus.exports = config_.slot_memory->exports();
  gpus.wish = static_cast<VerbsDeviceMemory>(config_.settings.Number("verbs_device_memory"));
  gpus.links = config_.reactor;
  const auto regions = std::make_shared<VerbsRegions>(hubs, config_.memory, gpus, config_.rank, reads());
  ports->clear();
  for (size_t i = 0; i < hubs.size(); ++i) ports->push_back({hubs[i], regions, i});
  return Status();
}

std::vector<VerbsPort> VerbsTransport::PortsTo(const LinkRequest& link, const std::vector<VerbsPort>& ports) const {
  const std::string_view theirs = NetworksOf(link.address);
  const bool is_first = config_.rank < link.peer;
  std::vector<VerbsPort> all;
  for (const auto& [first, second] : is_first ? PairPorts(networks_, theirs) : PairPorts(theirs, networks_)) {
    all.push_back(ports[is_first ? first : second]);
  }
  return all;
}

VerbsConnectionConfig VerbsTransport::ConfigOfLinks() const {
  VerbsConnectionConfig config;
  config.slots = slots();
  config.slot_bytes = config_.slot_bytes;
  config.least_part = LeastPart(config_.slot_bytes);
  config.least_read = LeastRead();
  config.path.reads = reads();
  config.rank = config_.rank;
  config.slot_memory = config_.slot_memory;
  const TransportSettings& settings = config_.settings;
  config.path.service_level = static_cast<uint8_t>(settings.Number("verbs_sl"));
  config.path.traffic_class = static_cast<uint8_t>(settings.Number("verbs_traffic_class"));
  config.path.pkey_index = static_cast<uint16_t>(settings.Number("verbs_pkey"));
  // 0: not set, as where no user is.
  const int64_t timeout = settings.Number("verbs_timeout");
  const int64_t retries = settings.Number("verbs_retry");
  config.path.timeout = static_cast<uint8_t>(timeout != 0 ? timeout : kVerbsTimeout);
  config.path.retries = static_cast<uint8_t>(retries != 0 ? retries : kVerbsRetry);
  return config;
}

Status VerbsTransport::HandOver(std::span<const LinkRequest> links, const std::vector<VerbsPort>& ports,
                                const Status& opened, std::vector<Stream>* streams, Handovers* handovers) const {
  VerbsConnectionConfig config = ConfigOfLinks();
  for (size_t i = 0; i < links.size(); ++i) {
    handovers->push_back(std::make_unique<VerbsHandover>(config_.rank, links[i], &(*streams)[i].socket));
    if (ports.empty()) {
      ANNULUS_RETURN_IF_ERROR(handovers->back()->Refuse(opened));
      continue;
    }
    const int64_t reconnect_ms = ReconnectMs(config_.settings.Number("reconnect_ms"), links[i].same_host);
    config.continue_limit = config_.continues ? reconnect_ms * kMillisecond : 0;
    auto endpoint = std::make_unique<VerbsEndpoint>(PortsTo(links[i], ports), links[i].peer, config);
    ANNULUS_RETURN_IF_ERROR(handovers->back()->Start(std::move(endpoint)));
  }
  return Status();
}

Status VerbsTransport::AwaitHandovers(std::vector<Stream>* streams, const ConnectContext& context,
                                      Handovers* handovers) const {
  ReadableWait wait;
  while (true) {
    const VerbsHandover* first = nullptr;
    for (size_t i = 0; i < handovers->size(); ++i) {
      VerbsHandover& handover = *(*handovers)[i];
      if (!handover.done()) ANNULUS_RETURN_IF_ERROR(handover.Continue());
      if (handover.done() || first != nullptr) continue;
      first = &handover;
      // One socket at a time: its peer has to come anyway, and the other sockets are checked when it has.
      wait.For(&(*streams)[i].socket);
    }
    if (first == nullptr) return Status();
    if (context.give_up) ANNULUS_RETURN_IF_ERROR(context.give_up());
    if (Now() >= context.deadline) {
      return {Code::kTimeout, "timed out while rank " + std::to_string(first->peer()) + " sets up its verbs link",
              first->peer(), 0};
    }
    config_.reactor->WaitUntil(context.deadline);
  }
}

Status VerbsTransport::Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                               std::vector<std::unique_ptr<Endpoint>>* endpoints) {
  for (const LinkRequest& link : links) ANNULUS_CHECK(!link.has_other || context.refused != nullptr);
  std::vector<Stream> streams;
  ANNULUS_RETURN_IF_ERROR(EstablishSockets(links, context, &streams));
  std::vector<VerbsPort> ports;  // The endpoints share them.
  const Status opened = OpenPorts(links.size(), &ports);
  Handovers handovers;
  ANNULUS_RETURN_IF_ERROR(HandOver(links, ports, opened, &streams, &handovers));
  ANNULUS_RETURN_IF_ERROR(AwaitHandovers(&streams, context, &handovers));
  std::vector<std::unique_ptr<Endpoint>> made;
  for (size_t i = 0; i < links.size(); ++i) {
    const std::string& refusal = handovers[i]->refusal();
    made.push_back(refusal.empty() ? handovers[i]->TakeEndpoint() : nullptr);
    if (!refusal.empty()) context.refused(i, refusal);
  }
  *endpoints = std::move(made);
  return Status();
}

}  // namespace

std::unique_ptr<Transport> CreateVerbsTransport(const TransportConfig& config) {
  std::string why;
  const VerbsApi* const api = LoadVerbs(&why);
  // Several threads may come here; the first one prepares, and for the others there is nothing left to do.
  static const int prepared = api != nullptr ? PrepareForForks(*api) : 0;
  (void)prepared;
  return CreateVerbsTransportOver(api, why, config);
}

std::unique_ptr<Transport> CreateVerbsTransportOver(const VerbsApi* api, const std::string& why,
                                                    const TransportConfig& config) {
  ANNULUS_CHECK(config.reactor != nullptr && config.slots > 0 && config.slot_bytes > 0);
  if (const int error = api != nullptr ? PrepareForForks(*api) : 0; error != 0) WarnOfForks(error, config.rank);
  return std::make_unique<VerbsTransport>(api, why, config);
}

}  // namespace annulus
