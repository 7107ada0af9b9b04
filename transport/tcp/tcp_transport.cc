// The TCP transport: where it listens, and how it makes links out of authenticated streams.
//
// The address blob is "LANES HOST:PORT TICKET". Both ends of a link use the lanes that the accepting, lower rank
// announces. The ticket is for connections that are made again (TcpDoor); it is missing where they are not.
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/parse.h"
#include "transport/continuable.h"
#include "transport/reactor.h"
#include "transport/reconnect.h"
#include "transport/security/connector.h"
#include "transport/stream_socket.h"
#include "transport/tcp/socket/tcp_options.h"
#include "transport/tcp/socket/tcp_path.h"
#include "transport/tcp/tcp.h"
#include "transport/tcp/tcp_endpoint.h"
#include "transport/tcp/tcp_settings.h"

namespace annulus {
namespace {

// Sockets per link unless the user sets a number. On one host a second socket only adds system calls; between hosts it
// gives the link a second queue, processor and path.
constexpr int kLanesOnLoopback = 1;
constexpr int kLanesOnNetworks = 2;
constexpr int kMaxLanes = 64;

// On a path of this round trip time 16 Gbit/s fill 2 MiB, the slots of one direction.
constexpr uint32_t kLongPathUs = 1000;

constexpr size_t kTicketBytes = 32;

// A random text that only ranks of this communicator learn.
Status DrawTicket(std::string* ticket) {
  std::array<unsigned char, kTicketBytes> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return Status::System("no random numbers", errno);
  }
  constexpr char kDigits[] = "0123456789abcdef";
  ticket->clear();
  for (const unsigned char byte : random) ticket->append({kDigits[byte / 16], kDigits[byte % 16]});
  return Status();
}

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(const TransportConfig& config)
      : config_(config),
        interface_name_(config.settings.Text("interface_name")),
        listener_(config.reactor->context()) {}

  const char* Name() const override { return kTcpTransport.name; }
  Status Probe() const override;
  Status LocalAddress(std::string* address) override;
  Status Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                 std::vector<std::unique_ptr<Endpoint>>* endpoints) override;
  // `lands`: as RecvQueue's.
  Status MakeEndpoint(const LinkRequest& link, std::span<Stream> lanes, std::optional<TcpRepairConfig> repair,
                      bool lands, std::unique_ptr<annulus::Endpoint>* endpoint) const;

 private:
  struct Target {
    int lanes = 0;
    StreamEndpoint endpoint;
    std::string ticket;  // "" when the peer does not let broken connections be made again.
  };

  Status FindLocal(StreamEndpoint* local) const;
  Status ParseTarget(const LinkRequest& link, Target* target) const;
  Status AddLink(const LinkRequest& link, ConnectPlan* plan, int* lanes) const;
  Hello OwnHello(const ConnectContext& context) const;
  Nanoseconds RepairLimit(bool same_host) const {
    return ReconnectMs(config_.settings.Number("reconnect_ms"), same_host) * kMillisecond;
  }
  // How the link is made again; nothing when it is not.
  std::optional<TcpRepairConfig> RepairOf(const LinkRequest& link, const Hello& hello, std::span<const Stream> lanes,
                                          const std::shared_ptr<TcpDoor>& door) const;
  // The door for connections that are made again; null when this rank accepts none.
  std::shared_ptr<TcpDoor> KeepListening(const Hello& hello, std::span<const LinkRequest> links);
  void StopListening();

  const TransportConfig config_;
  const std::string interface_name_;  // Interface to listen on; "": local_host.
  StreamListener listener_;
  StreamEndpoint local_;  // Port 0.
  int lanes_ = 0;
  std::string ticket_;  // The ticket in this rank's address.
};

Status TcpTransport::FindLocal(StreamEndpoint* local) const {
  StreamEndpoint towards_rendezvous;
  if (!config_.local_host.empty()) {
    ANNULUS_RETURN_IF_ERROR(annulus::MakeEndpoint(config_.local_host, 0, &towards_rendezvous));
  }
  if (!interface_name_.empty()) return AddressOfInterface(interface_name_, towards_rendezvous, local);
  if (!HasAddress(towards_rendezvous))
    return Status::Invalid("neither an interface nor an own address is known for TCP");
  *local = towards_rendezvous;
  return Status();
}

Status TcpTransport::Probe() const {
  StreamEndpoint local;
  Status found = FindLocal(&local);
  return found.ok() ? found : Status(Code::kUnsupported, found.message());
}

Status TcpTransport::LocalAddress(std::string* address) {
  ANNULUS_RETURN_IF_ERROR(FindLocal(&local_));
  ANNULUS_RETURN_IF_ERROR(Listen(config_.reactor, local_, nullptr, &listener_));
  lanes_ = static_cast<int>(config_.settings.Number("tcp_sockets"));
  if (lanes_ <= 0) lanes_ = IsLoopback(local_) ? kLanesOnLoopback : kLanesOnNetworks;
  lanes_ = std::min(lanes_, kMaxLanes);
  asio::error_code error;
  const StreamEndpoint bound = listener_.local_endpoint(error);
  if (error) return Status::System("cannot read the listening socket's address", error.value());
  *address = std::to_string(lanes_) + " " + EndpointText(bound);
  if (RepairLimit(false) <= 0) return Status();
  ANNULUS_RETURN_IF_ERROR(DrawTicket(&ticket_));
  *address += " " + ticket_;
  return Status();
}

Status TcpTransport::ParseTarget(const LinkRequest& link, Target* target) const {
  const size_t space = link.address.find(' ');
  const size_t second = space != std::string::npos ? link.address.find(' ', space + 1) : space;
  int64_t lanes = 0;
  const bool parsed = space != std::string::npos && ParseNumber(link.address.substr(0, space), &lanes) &&
                      ParseEndpoint(link.address.substr(space + 1, second - space - 1), &target->endpoint).ok();
  if (second != std::string::npos) target->ticket = link.address.substr(second + 1);
  if (!parsed || lanes < 1 || lanes > kMaxLanes) {
    return {Code::kProtocol, "rank " + std::to_string(link.peer) + " announced a broken TCP address", link.peer, 0};
  }
  target->lanes = static_cast<int>(lanes);
  return Status();
}

Status TcpTransport::AddLink(const LinkRequest& link, ConnectPlan* plan, int* lanes) const {
  ANNULUS_CHECK(link.peer != config_.rank && link.peer >= 0 && link.peer < config_.nranks);
  StreamId id{static_cast<uint32_t>(link.peer), static_cast<uint16_t>(link.channel), 0};
  Target target;
  if (config_.rank > link.peer) ANNULUS_RETURN_IF_ERROR(ParseTarget(link, &target));
  *lanes = config_.rank > link.peer ? target.lanes : lanes_;
  for (int lane = 0; lane < *lanes; ++lane) {
    id.lane = static_cast<uint16_t>(lane);
    if (config_.rank > link.peer) {
      plan->dials.push_back({id, {target.endpoint}});
    } else {
      plan->expected.push_back(id);
    }
  }
  return Status();
}

Hello TcpTransport::OwnHello(const ConnectContext& context) const {
  Hello hello;
  hello.purpose = {kTcpTransport.hello_purpose, kTcpTransport.title};
  hello.identity = context.identity;
  hello.encrypts = config_.settings.Number("encrypt") != 0;
  hello.nranks = static_cast<uint32_t>(config_.nranks);
  hello.rank = static_cast<uint32_t>(config_.rank);
  return hello;
}

Status TcpTransport::Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                             std::vector<std::unique_ptr<Endpoint>>* endpoints) {
  ConnectPlan plan;
  plan.hello = OwnHello(context);
  plan.key = config_.job_key;
  plan.listener = &listener_;
  plan.deadline = context.deadline;
  plan.give_up = context.give_up;
  // Otherwise the routing table would choose, and it may prefer another interface than the user does.
  if (!interface_name_.empty()) plan.source = local_;
  std::vector<int> lanes(links.size());
  for (size_t i = 0; i < links.size(); ++i) ANNULUS_RETURN_IF_ERROR(AddLink(links[i], &plan, &lanes[i]));

  std::vector<Stream> streams;
  Status status = EstablishStreams(config_.reactor, plan, &streams);
  if (!status.ok()) StopListening();
  ANNULUS_RETURN_IF_ERROR(std::move(status));
  const std::shared_ptr<TcpDoor> door = KeepListening(plan.hello, links);

  // Dials come first and expected streams after them, each link's lanes together.
  size_t next_dialled = 0;
  size_t next_accepted = plan.dials.size();
  std::vector<std::unique_ptr<Endpoint>> made(links.size());
  for (size_t i = 0; i < links.size(); ++i) {
    size_t& next = config_.rank > links[i].peer ? next_dialled : next_accepted;
    const std::span<Stream> of_link(&streams[next], static_cast<size_t>(lanes[i]));
    next += of_link.size();
    ANNULUS_RETURN_IF_ERROR(
        MakeEndpoint(links[i], of_link, RepairOf(links[i], plan.hello, of_link, door), true, &made[i]));
  }
  *endpoints = std::move(made);
  return Status();
}

std::shared_ptr<TcpDoor> TcpTransport::KeepListening(const Hello& hello, std::span<const LinkRequest> links) {
  const bool any_expected = std::ranges::any_of(
      links, [this](const LinkRequest& link) { return config_.rank < link.peer && RepairLimit(link.same_host) > 0; });
  if (ticket_.empty() || !any_expected) {
    StopListening();
    return nullptr;
  }
  return std::make_shared<TcpDoor>(&config_.reactor->context(), std::move(listener_), hello, config_.job_key + ticket_);
}

std::optional<TcpRepairConfig> TcpTransport::RepairOf(const LinkRequest& link, const Hello& hello,
                                                      std::span<const Stream> lanes,
                                                      const std::shared_ptr<TcpDoor>& door) const {
  TcpRepairConfig repair;
  repair.limit = RepairLimit(link.same_host);
  const bool knows = std::ranges::all_of(lanes, [](const Stream& s) { return s.session_minor >= kMinorThatResumes; });
  if (repair.limit <= 0 || !knows) return std::nullopt;
  repair.reactor = config_.reactor;
  repair.peer = link.peer;
  repair.channel = link.channel;
  repair.lanes = static_cast<int>(lanes.size());
  repair.dial.hello = hello;
  if (config_.rank < link.peer) {
    repair.door = door;
    return repair;
  }
  Target target;
  if (!ParseTarget(link, &target).ok() || target.ticket.empty()) return std::nullopt;
  repair.dial.hello.target_rank = static_cast<uint32_t>(link.peer);
  repair.dial.hello.channel = static_cast<uint16_t>(link.channel);
  repair.dial.key = config_.job_key + target.ticket;
  repair.dial.target = target.endpoint;
  if (!interface_name_.empty()) repair.dial.source = local_;
  return repair;
}

Status TcpTransport::MakeEndpoint(const LinkRequest& link, std::span<Stream> lanes,
                                  std::optional<TcpRepairConfig> repair, bool lands,
                                  std::unique_ptr<annulus::Endpoint>* endpoint) const {
  std::vector<SealedSocket> sockets;
  for (Stream& lane : lanes) sockets.emplace_back(std::move(lane.socket), std::move(lane.seal));
  asio::error_code error;
  const StreamEndpoint own = sockets[0].socket.local_endpoint(error);
  const StreamEndpoint peer = sockets[0].socket.remote_endpoint(error);
  if (error) {
    return {Code::kPeerLost,
            "the connection with rank " + std::to_string(link.peer) + " is gone already: " + error.message(), link.peer,
            error.value()};
  }
  const bool same_host = link.same_host || IsLoopback(peer) || HostText(own) == HostText(peer);
  for (SealedSocket& each : sockets) {
    ANNULUS_RETURN_IF_ERROR(TuneSocket(each.socket.native_handle(), same_host));
  }
  const uint32_t round_trip_us = LeastRoundTripUs(sockets[0].socket.native_handle()).value_or(0);
  TcpEndpointConfig config;
  config.peer = link.peer;
  config.session = {config_.slot_bytes,
                    config_.slots,
                    config_.settings.Number("checksum") != 0,
                    config_.slot_memory,
                    repair.has_value(),
                    round_trip_us >= kLongPathUs,
                    lands};
  if (repair) {
    repair->same_host = same_host;
    repair->dial.round_trip = round_trip_us * kMicrosecond;
  }
  config.repair = std::move(repair);
  config.description = InterfaceOf(own) + ", " + EndpointText(own) + " to " + EndpointText(peer);
  if (sockets[0].seal != nullptr) config.description += ", encrypted";
  if (sockets.size() > 1) config.description += " and " + std::to_string(sockets.size() - 1) + " more sockets";
  Log(LogLevel::kDebug, config_.rank, "link with rank %d, channel %d: tcp %s, %s", link.peer, link.channel,
      config.description.c_str(), CongestionControlOf(sockets[0].socket.native_handle()).c_str());
  auto made = std::make_unique<TcpEndpoint>(config, std::move(sockets));
  if (!made->valid())
    return {Code::kOutOfMemory, "no memory for the slots of the link with rank " + std::to_string(link.peer)};
  *endpoint = std::move(made);
  return Status();
}

void TcpTransport::StopListening() {
  asio::error_code ignored;
  listener_.close(ignored);
}

}  // namespace

std::unique_ptr<Transport> CreateTcpTransport(const TransportConfig& config) {
  ANNULUS_CHECK(config.reactor != nullptr && config.slots > 0 && config.slot_bytes > 0);
  return std::make_unique<TcpTransport>(config);
}

Status TcpOverStream(const TransportConfig& config, const LinkRequest& link, LinkStream stream,
                     std::unique_ptr<Endpoint>* endpoint) {
  Stream lane{{}, 0, std::move(stream.socket), nullptr};
  return TcpTransport(config).MakeEndpoint(link, {&lane, 1}, std::nullopt, false, endpoint);
}

}  // namespace annulus
