#include "transport/verbs/device/verbs_route.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace annulus {
namespace {

using Gid = std::array<uint8_t, 16>;

// Routers that a packet may pass. Within an InfiniBand subnet there is none.
constexpr uint8_t kHopLimit = 64;
constexpr uint8_t kNoHop = 1;

// The membership bit of a partition key.
constexpr uint16_t kFullMember = 0x8000;

bool IsRoutable(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0xc0; }

// The LID by which routers know the port.
uint16_t ForwardedLid(const Gid& gid) { return static_cast<uint16_t>(gid[4] << 8 | gid[5]); }

std::string KeyText(uint16_t pkey) {
  char text[8];
  std::snprintf(text, sizeof text, "0x%04x", pkey);
  return text;
}

Status CannotReach(const VerbsDevice& from, const VerbsRemotePort& to, const std::string& why) {
  return {Code::kUnsupported, "verbs: " + from.Describe() + " cannot reach " + RemotePortText(to) + ": " + why};
}

Status CheckPartition(const VerbsDevice& from, const VerbsRemotePort& to) {
  const uint16_t own = from.pkey();
  if (((own ^ to.pkey) & ~kFullMember) != 0) {
    return CannotReach(from, to,
                       "their partition keys are " + KeyText(own) + " and " + KeyText(to.pkey) +
                           ": choose the same partition with ANNULUS_VERBS_PKEY");
  }
  if (((own | to.pkey) & kFullMember) == 0) {
    return CannotReach(from, to, "both are limited members of partition " + KeyText(own));
  }
  return Status();
}

void AddGlobalHeader(const VerbsDevice& from, const VerbsRemotePort& to, uint8_t hop_limit, ibv_ah_attr* attributes) {
  attributes->is_global = 1;
  std::copy(to.gid.begin(), to.gid.end(), std::begin(attributes->grh.dgid.raw));
  attributes->grh.sgid_index = static_cast<uint8_t>(from.gid_index());
  attributes->grh.hop_limit = hop_limit;
}

}  // namespace

Gid SubnetOf(Gid gid) {
  if (IsRoutable(gid)) gid[4] = gid[5] = 0;
  std::fill(gid.begin() + 8, gid.end(), uint8_t{0});
  return gid;
}

std::string RemotePortText(const VerbsRemotePort& port) {
  return port.ethernet ? GidText(port.gid) : "InfiniBand LID " + std::to_string(port.lid);
}

Status RouteTo(const VerbsDevice& from, const VerbsRemotePort& to, ibv_ah_attr* attributes) {
  if (to.ethernet != from.ethernet()) {
    return CannotReach(from, to, std::string("the peer has ") + (to.ethernet ? "RoCE" : "InfiniBand"));
  }
  attributes->port_num = from.port();
  if (to.ethernet) {
    AddGlobalHeader(from, to, kHopLimit, attributes);
    return Status();
  }
  ANNULUS_RETURN_IF_ERROR(CheckPartition(from, to));
  const bool same_subnet = SubnetOf(from.gid()) == SubnetOf(to.gid);
  attributes->dlid = to.lid;
  if (same_subnet && !from.needs_global()) return Status();
  AddGlobalHeader(from, to, same_subnet ? kNoHop : kHopLimit, attributes);
  if (same_subnet) return Status();
  attributes->dlid = IsRoutable(to.gid) ? ForwardedLid(to.gid) : 0;
  if (attributes->dlid != 0 && attributes->dlid <= kMostLid) return Status();
  return CannotReach(from, to,
                     "it is in another subnet, and its GID " + GidText(to.gid) +
                         " does not tell the way there: choose a routable one with ANNULUS_VERBS_GID");
}

}  // namespace annulus
