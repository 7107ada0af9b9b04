// The TCP transport's description of itself.
//
// Threads: constants and plain functions.
#include <algorithm>
#include <cstddef>

#include "transport/reconnect.h"
#include "transport/security/seal.h"
#include "transport/tcp/session/tcp_session.h"
#include "transport/tcp/tcp.h"
#include "transport/tcp/tcp_settings.h"

namespace annulus {
namespace {

constexpr const char* kCostSettings[] = {"tcp_sockets", "encrypt"};

// Costs on one host: measured by `annulus-perf` with ANNULUS_ALGORITHM set to each in turn, 8 B to 64 KiB, on the
// machine of docs/benchmarks/2026-11-22-peers.md; docs/decisions/0027-choice.md has the figures. The cores do all the
// work.
constexpr LinkCosts kLoopback = {
    .latency_s = 3.3e-6, .byte_s = 5e-11, .message_s = 2.3e-6, .reduce_byte_s = 2e-11, .move_byte_s = 2.2e-10};
// Time per message where ranks share cores, in seconds; it includes a switch to the receiver.
constexpr double kSharedCoreMessage = 8e-6;
// Costs between hosts, for 1 Gbit/s: of the links in use, 100 Mbit/s to 100 Gbit/s, the one that leads to the least
// regret on the others.
constexpr LinkCosts kNetwork = {
    .latency_s = 30e-6, .byte_s = 8e-9, .message_s = 3e-6, .reduce_byte_s = 2e-11, .move_byte_s = 2e-10};

LinkCosts Costs(const LinkPlace& place) {
  if (!place.same_host) return kNetwork;
  LinkCosts costs = kLoopback;
  if (place.ranks_per_core > 1) costs.message_s = kSharedCoreMessage;
  return costs;
}

// Frame buffers, in bytes: 7 KiB for each of several sockets, 39 KiB for a single socket. What is kept for another
// connection, in each socket, comes on top. The transport chooses up to kChosenSockets sockets by itself.
constexpr size_t kSocketBytes = 8 * 1024;
constexpr size_t kOneSocketBytes = 40 * 1024;
constexpr int64_t kChosenSockets = 2;
constexpr size_t kSlotAlignment = 64;

size_t LanesBytes(const TransportConfig& config, int sockets) {
  const uint32_t most_short = sockets == 1 ? TcpSession::kMostShortBytes : 0;
  size_t each = 0;
  if (ReconnectMs(config.settings.Number("reconnect_ms"), false) > 0) {
    each += TcpRetained::MemoryBytes(TcpRetained::RoomFor(config.slot_bytes, config.slots, sockets, most_short));
  }
  if (config.settings.Number("encrypt") != 0) each += Seal::kMemoryBytes;
  const auto lanes = static_cast<size_t>(sockets);
  return std::max(lanes * kSocketBytes, kOneSocketBytes) + lanes * each;
}

size_t SlotsBytes(const TransportConfig& config) {
  const size_t slot = (config.slot_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  return 2 * static_cast<size_t>(config.slots) * slot;
}

size_t LinkMemoryBytes(const TransportConfig& config) {
  const auto sockets = static_cast<int>(std::max(config.settings.Number("tcp_sockets"), kChosenSockets));
  return SlotsBytes(config) + std::max(LanesBytes(config, 1), LanesBytes(config, sockets));
}

// It has one connection, which is not made again.
size_t OverStreamBytes(const TransportConfig& config) {
  TransportConfig one = config;
  one.settings.Set("reconnect_ms", 0);
  return SlotsBytes(config) + LanesBytes(one, 1);
}

}  // namespace

constinit const TransportInfo kTcpTransport = {
    .name = kTcpName,
    .title = "TCP",
    .same_host_only = false,
    .needs_device = false,
    .in_clear = false,
    .by_system_calls = true,
    .hello_purpose = 2,
    .networks = nullptr,
    .cost_settings = kCostSettings,
    .costs = Costs,
    .link_memory = LinkMemoryBytes,
    .create = CreateTcpTransport,
    .over_stream = TcpOverStream,
    .over_stream_memory = OverStreamBytes,
};

}  // namespace annulus
