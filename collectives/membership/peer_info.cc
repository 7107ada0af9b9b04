#include "collectives/membership/peer_info.h"

#include <algorithm>
#include <string_view>

#include "base/bytes.h"
#include "transport/select/select.h"

namespace annulus {

static std::string Text(const std::optional<Algorithm>& algorithm) {
  return algorithm ? AlgorithmText(*algorithm) : kAutoAlgorithm;
}

// Returns false when no entry has that name.
static bool Parse(const std::string& text, std::optional<Algorithm>* algorithm) {
  Algorithm named{};
  const bool is_auto = text == kAutoAlgorithm;
  if (!is_auto && !FindAlgorithm(text, &named)) return false;
  *algorithm = is_auto ? std::nullopt : std::optional(named);
  return true;
}

namespace {

struct Compared {
  const char* setting;
  std::string (*text)(const PeerInfo& info);
};

// The settings with their own field in a PeerInfo. These fields hold the values that the rank finally uses.
constexpr Compared kCompared[] = {
    {"transport", [](const PeerInfo& info) { return info.transport; }},
    {"tuning", [](const PeerInfo& info) { return info.tuning; }},
    {"algorithm", [](const PeerInfo& info) { return Text(info.plan.algorithm); }},
    {"slice_bytes", [](const PeerInfo& info) { return std::to_string(info.plan.slice_bytes); }},
    {"small_bytes", [](const PeerInfo& info) { return std::to_string(info.plan.small_bytes); }},
    {"channels", [](const PeerInfo& info) { return std::to_string(info.plan.channels); }},
    {"mesh_ranks", [](const PeerInfo& info) { return std::to_string(info.plan.mesh_ranks); }},
    {"priorities", [](const PeerInfo& info) { return std::to_string(info.priorities); }},
    {"memory_bytes", [](const PeerInfo& info) { return std::to_string(info.memory_bytes); }},
};

// The other settings on which ranks must agree. They are sent as texts, in the order of the table.
std::vector<const Setting*> FurtherSettings(std::span<const Setting> settings) {
  std::vector<const Setting*> further;
  for (const Setting& setting : settings) {
    const auto is_it = [&](const Compared& each) { return std::string_view(each.setting) == setting.name; };
    if (setting.ranks == Ranks::kMustAgree && std::ranges::none_of(kCompared, is_it)) further.push_back(&setting);
  }
  return further;
}

// The variables that name the ports of links.
std::string PortsVariables() {
  std::string names;
  for (const TransportInfo* each : Transports()) {
    if (each->ports_setting == nullptr) continue;
    names += (names.empty() ? "" : " or ") + std::string(SettingNamed(each->ports_setting).variable);
  }
  return names;
}

// The size and number of slots follow from the limit on memory and from the ports of links.
Status CheckPorts(const PeerInfo& first, const PeerInfo& peer, int rank) {
  const std::string& theirs = peer.further.back();
  if (first.memory_bytes != peer.memory_bytes || first.further.back() == theirs) return Status();
  const std::string what = PortsVariables() + " must name equally many ports on all ranks where " +
                           SettingNamed("memory_bytes").variable + " is set";
  return {Code::kMismatch,
          what + ": rank 0 names " + first.further.back() + ", rank " + std::to_string(rank) + " names " + theirs, rank,
          0};
}

// Settings of links that may differ count for the memory that they take.
Status CheckSlots(const PlanSettings& first, const PlanSettings& own, int rank) {
  if (first.slots == own.slots && first.largest_slice_bytes == own.largest_slice_bytes) return Status();
  const auto text = [](const PlanSettings& plan) {
    return std::to_string(plan.slots) + " slots of up to " + std::to_string(plan.largest_slice_bytes) + " bytes";
  };
  return {
      Code::kMismatch,
      std::string(SettingNamed("memory_bytes").variable) + " has room for " + text(first) + " on rank 0, for " +
          text(own) + " on rank " + std::to_string(rank) +
          ": with it, settings that say how much memory links take (ANNULUS_TCP_SOCKETS, ANNULUS_RECONNECT_MS) must "
          "be the same on all ranks",
      rank, 0};
}

}  // namespace

// The last one is the number of ports, "" where they may differ.
std::vector<std::string> FurtherTexts(const Options& options, std::span<const Setting> settings) {
  std::vector<std::string> texts;
  for (const Setting* setting : FurtherSettings(settings)) texts.push_back(ValueText(*setting, options));
  texts.push_back(options.memory_bytes > 0 ? std::to_string(MostLinkPorts(Transports(), options)) : "");
  return texts;
}

std::string Encode(const PeerInfo& info) {
  ByteWriter out;
  out.Text(info.member.host_id, kLargestPeerText);
  out.Text(info.transport, kLargestPeerText);
  out.Text(info.tuning, kLargestPeerText);
  out.Text(Text(info.plan.algorithm), kLargestPeerText);
  out.U64(info.plan.slice_bytes);
  out.U64(info.plan.small_bytes);
  out.U32(info.plan.channels);
  out.U32(info.plan.slots);
  out.U64(info.plan.largest_slice_bytes);
  out.U32(info.plan.mesh_ranks);
  out.U32(info.priorities);
  out.U64(info.memory_bytes);
  out.U32(info.member.cores.count);
  out.U64(info.member.cores.digest);
  out.U32(info.member.has_devices ? 1 : 0);
  for (const std::string& address : info.member.addresses) out.Text(address, kLargestPeerText);
  for (const std::string& reason : info.member.reasons) out.Text(reason, kLargestReason);
  for (const std::string& text : info.further) out.Text(text, kLargestPeerText);
  return out.bytes();
}

Status Decode(const std::string& blob, int rank, size_t addresses, PeerInfo* info, std::span<const Setting> settings) {
  ByteReader in(blob);
  info->member.host_id = in.Text(kLargestPeerText);
  info->transport = in.Text(kLargestPeerText);
  info->tuning = in.Text(kLargestPeerText);
  const bool known = Parse(in.Text(kLargestPeerText), &info->plan.algorithm);
  info->plan.slice_bytes = in.U64();
  info->plan.small_bytes = in.U64();
  info->plan.channels = static_cast<int>(in.U32());
  info->plan.slots = static_cast<int>(in.U32());
  info->plan.largest_slice_bytes = in.U64();
  info->plan.mesh_ranks = static_cast<int>(in.U32());
  info->priorities = static_cast<int>(in.U32());
  info->memory_bytes = in.U64();
  info->member.cores.count = in.U32();
  info->member.cores.digest = in.U64();
  const uint32_t has_devices = in.U32();
  info->member.has_devices = has_devices == 1;
  info->member.addresses.clear();
  for (size_t i = 0; i < addresses; ++i) info->member.addresses.push_back(in.Text(kLargestPeerText));
  info->member.reasons.clear();
  for (size_t i = 0; i < addresses; ++i) info->member.reasons.push_back(in.Text(kLargestReason));
  info->further.clear();
  for (size_t i = FurtherSettings(settings).size() + 1; i > 0; --i) info->further.push_back(in.Text(kLargestPeerText));
  if (known && info->member.cores.count > 0 && has_devices <= 1 && in.done()) return Status();
  return {Code::kProtocol, "rank " + std::to_string(rank) + " described itself in an unknown format", rank, 0};
}

Status CheckAgreement(std::span<const PeerInfo> peers, std::span<const Setting> settings) {
  const auto check = [](size_t rank, const char* variable, const std::string& first, const std::string& own) {
    if (first == own) return Status();
    return Status(Code::kMismatch,
                  std::string(variable) + " must be the same on all ranks: rank 0 has \"" + first + "\", rank " +
                      std::to_string(rank) + " has \"" + own + "\"",
                  static_cast<int>(rank), 0);
  };
  const PeerInfo& first = peers[0];
  const std::vector<const Setting*> further = FurtherSettings(settings);
  for (size_t rank = 1; rank < peers.size(); ++rank) {
    const PeerInfo& peer = peers[rank];
    ANNULUS_RETURN_IF_ERROR(CheckPorts(first, peer, static_cast<int>(rank)));
    for (const Compared& each : kCompared) {
      ANNULUS_RETURN_IF_ERROR(check(rank, SettingNamed(each.setting).variable, each.text(first), each.text(peer)));
    }
    for (size_t i = 0; i < further.size(); ++i) {
      ANNULUS_RETURN_IF_ERROR(check(rank, further[i]->variable, first.further[i], peer.further[i]));
    }
    ANNULUS_RETURN_IF_ERROR(CheckSlots(first.plan, peer.plan, static_cast<int>(rank)));
  }
  return Status();
}

}  // namespace annulus
