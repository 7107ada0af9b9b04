// Sets up shared memory links: authenticated UNIX sockets first, then a memory file over each of them.
//
// The transport listens under a random name in the abstract namespace of UNIX sockets, so nothing in the file system
// can collide or be left behind. The name is not secret (/proc/net/unix shows it to the host's other users): only the
// handshake decides who is a peer.
//
// Threads: as transport/transport.h says.
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio/local/stream_protocol.hpp>
#include <cerrno>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/file_limit.h"
#include "transport/reactor.h"
#include "transport/readable_wait.h"
#include "transport/security/connector.h"
#include "transport/security/door.h"
#include "transport/shm/shm.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/shm/shm_handover.h"
#include "transport/shm/shm_mapping.h"

namespace annulus {
namespace {

constexpr char kNamePrefix[] = "annulus-";
constexpr size_t kNameRandomBytes = 16;
// Time between two attempts to pass files that the kernel has refused to pass for now.
constexpr Nanoseconds kSendAgainInterval = 5 * kMillisecond;

constexpr size_t kNameBytes = sizeof(kNamePrefix) - 1 + 2 * kNameRandomBytes;

// The abstract name behind a LocalAddress: a zero byte marks it.
StreamEndpoint EndpointOf(const std::string& name) {
  return asio::local::stream_protocol::endpoint(std::string(1, '\0') + name);
}

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(const TransportConfig& config)
      : config_(config),
        slot_stores_(static_cast<SlotStores>(config.settings.Number("shm_stores"))),
        kernel_copies_(static_cast<KernelCopies>(config.settings.Number("shm_cma"))),
        device_reads_(static_cast<DeviceReads>(config.settings.Number("shm_cuda_ipc"))) {
    ANNULUS_CHECK(config.reactor != nullptr);
  }

  const char* Name() const override { return kShmTransport.name; }
  Status Probe() const override;
  Status LocalAddress(std::string* address) override;
  Status Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                 std::vector<std::unique_ptr<Endpoint>>* endpoints) override;

 private:
  bool Dials(const LinkRequest& link) const { return link.peer < config_.rank; }
  Status CheckLink(const LinkRequest& link) const;
  Status EstablishSockets(std::span<const LinkRequest> links, const ConnectContext& context,
                          std::vector<Stream>* streams);
  Status HandOver(std::vector<Stream>* streams, const ConnectContext& context, std::vector<ShmHandover>* handovers);
  Status AwaitHandovers(std::vector<Stream>* streams, const ConnectContext& context,
                        std::vector<ShmHandover>* handovers);

  const TransportConfig config_;
  const SlotStores slot_stores_;
  const KernelCopies kernel_copies_;
  const DeviceReads device_reads_;
  std::optional<StreamListener> listener_;
  std::string address_;
};

// A lack of descriptors is an error of its own: it says nothing of the machine.
static Status Unusable(const char* what, int os_errno) {
  const Status status = Status::System(what, os_errno);
  return IsOutOfDescriptors(os_errno) ? status : Status(Code::kUnsupported, status.message());
}

Status ShmTransport::Probe() const {
  const int memory = memfd_create("annulus-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory < 0) return Unusable("no memory files (memfd_create)", errno);
  close(memory);
  const uint64_t bytes = ShmLayout::For(static_cast<uint32_t>(config_.slots), config_.slot_bytes).total_bytes;
  if (!FileLimitAllows(bytes)) {
    return {Code::kUnsupported, "memory files of " + std::to_string(bytes) +
                                    " bytes, one for each link, are too large" + FileLimitText(EFBIG)};
  }
  const int socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) return Unusable("no UNIX sockets", errno);
  close(socket_fd);
  return Status();
}

Status ShmTransport::LocalAddress(std::string* address) {
  if (listener_) {
    *address = address_;
    return Status();
  }
  unsigned char random[kNameRandomBytes];
  if (getrandom(random, sizeof(random), 0) != static_cast<ssize_t>(sizeof(random))) {
    return Status::System("getrandom", errno);
  }
  std::string name = kNamePrefix;
  for (const unsigned char byte : random) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  StreamListener listener(config_.reactor->context());
  ANNULUS_RETURN_IF_ERROR(Listen(config_.reactor, EndpointOf(name), nullptr, &listener));
  listener_.emplace(std::move(listener));
  *address = address_ = name;
  return Status();
}

Status ShmTransport::CheckLink(const LinkRequest& link) const {
  if (link.peer < 0 || link.peer >= config_.nranks || link.peer == config_.rank || link.channel < 0 ||
      link.channel > UINT16_MAX) {
    return Status::Invalid("shared memory: no link to rank " + std::to_string(link.peer) + ", channel " +
                           std::to_string(link.channel) + ", is possible from rank " + std::to_string(config_.rank) +
                           " of " + std::to_string(config_.nranks));
  }
  if (Dials(link) && (link.address.size() != kNameBytes || !link.address.starts_with(kNamePrefix))) {
    return {Code::kProtocol, "shared memory: the address of rank " + std::to_string(link.peer) + " is malformed",
            link.peer, 0};
  }
  if (!Dials(link) && !listener_) return Status::Invalid("shared memory: Connect needs LocalAddress before it");
  return Status();
}

// Output: (*streams)[i] belongs to links[i].
Status ShmTransport::EstablishSockets(std::span<const LinkRequest> links, const ConnectContext& context,
                                      std::vector<Stream>* streams) {
  ConnectPlan plan;
  plan.hello.purpose = {kShmTransport.hello_purpose, kShmTransport.title};
  plan.hello.identity = context.identity;
  plan.hello.nranks = static_cast<uint32_t>(config_.nranks);
  plan.hello.rank = static_cast<uint32_t>(config_.rank);
  plan.key = config_.job_key;
  plan.listener = listener_ ? &*listener_ : nullptr;
  plan.deadline = context.deadline;
  plan.give_up = context.give_up;
  for (const LinkRequest& link : links) {
    ANNULUS_RETURN_IF_ERROR(CheckLink(link));
    const StreamId id{static_cast<uint32_t>(link.peer), static_cast<uint16_t>(link.channel), 0};
    if (Dials(link)) {
      plan.dials.push_back({id, {EndpointOf(link.address)}});
    } else {
      plan.expected.push_back(id);
    }
  }
  std::vector<Stream> made;
  ANNULUS_RETURN_IF_ERROR(EstablishStreams(config_.reactor, plan, &made));
  size_t dialled = 0;
  size_t accepted = plan.dials.size();
  streams->clear();
  for (const LinkRequest& link : links) streams->push_back(std::move(made[Dials(link) ? dialled++ : accepted++]));
  return Status();
}

Status ShmTransport::HandOver(std::vector<Stream>* streams, const ConnectContext& context,
                              std::vector<ShmHandover>* handovers) {
  handovers->reserve(streams->size());
  for (Stream& stream : *streams) {
    const int peer = static_cast<int>(stream.id.rank);
    handovers->emplace_back(config_.rank, peer, &stream.socket);
    ANNULUS_RETURN_IF_ERROR(handovers->back().Start(config_.slots, config_.slot_bytes));
  }
  return AwaitHandovers(streams, context, handovers);
}

Status ShmTransport::AwaitHandovers(std::vector<Stream>* streams, const ConnectContext& context,
                                    std::vector<ShmHandover>* handovers) {
  ReadableWait wait;
  while (true) {
    bool all_done = true;
    bool must_send = false;
    for (size_t i = 0; i < handovers->size(); ++i) {
      ShmHandover& handover = (*handovers)[i];
      ANNULUS_RETURN_IF_ERROR(handover.Continue());
      if (handover.done()) continue;
      if (all_done) {
        // One socket at a time: its peer has to come anyway, and the other sockets are checked when it has.
        wait.For(&(*streams)[i].socket);
      }
      all_done = false;
      must_send |= handover.must_send();
    }
    if (all_done) return Status();
    if (context.give_up) ANNULUS_RETURN_IF_ERROR(context.give_up());
    if (Now() >= context.deadline) {
      return std::ranges::find_if(*handovers, [](const ShmHandover& each) { return !each.done(); })->Late();
    }
    // The sockets do not tell when the kernel passes files again.
    config_.reactor->WaitUntil(must_send ? std::min(context.deadline, DeadlineAfter(kSendAgainInterval))
                                         : context.deadline);
  }
}

// Some peers have several links, for messages and for other channels.
static size_t NumPeers(std::span<const LinkRequest> links) {
  std::set<int> peers;
  for (const LinkRequest& link : links) peers.insert(link.peer);
  return peers.size();
}

Status ShmTransport::Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                             std::vector<std::unique_ptr<Endpoint>>* endpoints) {
  std::vector<Stream> streams;
  Status status = EstablishSockets(links, context, &streams);
  listener_.reset();
  std::vector<ShmHandover> handovers;
  if (status.ok()) status = HandOver(&streams, context, &handovers);
  ANNULUS_RETURN_IF_ERROR(std::move(status));
  const size_t peers = NumPeers(links);
  std::vector<std::unique_ptr<Endpoint>> made;
  for (size_t i = 0; i < links.size(); ++i) {
    std::shared_ptr<ShmMapping> mapping = handovers[i].TakeMapping();
    ANNULUS_RETURN_IF_ERROR(mapping->RegisterSlots(config_.slot_memory));
    auto endpoint =
        std::make_unique<ShmEndpoint>(std::move(mapping), config_.rank, links[i].peer, std::move(streams[i].socket),
                                      slot_stores_, config_.memory, kernel_copies_, device_reads_);
    endpoint->ShareCache(peers);
    made.push_back(std::move(endpoint));
  }
  *endpoints = std::move(made);
  return Status();
}

}  // namespace

std::unique_ptr<Transport> CreateShmTransport(const TransportConfig& config) {
  return std::make_unique<ShmTransport>(config);
}

}  // namespace annulus
