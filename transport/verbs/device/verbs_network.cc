#include "transport/verbs/device/verbs_network.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "transport/verbs/device/verbs_route.h"

namespace annulus {
namespace {

constexpr int kGidBits = 128;
constexpr int kIpv4Bits = 32;
// Leading bits of an InfiniBand GID that name the subnet; the rest names the port.
constexpr int kSubnetBits = 64;
// Bits of a partition key; the rest tells full members. All ports are in the partition whose bits are all set.
constexpr int kPartitionBits = 0x7fff;

bool IsIpv4(const std::array<uint8_t, 16>& gid) { return GidText(gid).find(':') == std::string::npos; }
bool IsLinkLocal(const std::array<uint8_t, 16>& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

// The address as a GID. Returns false when it is none of IPv4 or IPv6.
bool GidOf(const sockaddr* from, std::array<uint8_t, 16>* gid) {
  if (from == nullptr) return false;
  if (from->sa_family == AF_INET) {
    sockaddr_in address;
    std::memcpy(&address, from, sizeof(address));
    *gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    std::memcpy(gid->data() + 12, &address.sin_addr, sizeof(address.sin_addr));
    return true;
  }
  if (from->sa_family != AF_INET6) return false;
  sockaddr_in6 address;
  std::memcpy(&address, from, sizeof(address));
  std::copy(std::begin(address.sin6_addr.s6_addr), std::end(address.sin6_addr.s6_addr), gid->begin());
  return true;
}

// The bits that are set in the last `bits` of a mask.
int Ones(const std::array<uint8_t, 16>& mask, int bits) {
  int ones = 0;
  for (size_t i = mask.size() - static_cast<size_t>(bits / 8); i < mask.size(); ++i) ones += std::popcount(mask[i]);
  return ones;
}

// Bits of the network of this host's address `gid`; all where no interface has it.
int NetworkBits(const std::array<uint8_t, 16>& gid) {
  const int all = IsIpv4(gid) ? kIpv4Bits : kGidBits;
  ifaddrs* list = nullptr;
  if (IsLinkLocal(gid) || getifaddrs(&list) != 0) return all;
  int bits = 0;
  for (const ifaddrs* each = list; each != nullptr && bits == 0; each = each->ifa_next) {
    std::array<uint8_t, 16> own;
    std::array<uint8_t, 16> mask;
    if (GidOf(each->ifa_addr, &own) && own == gid && GidOf(each->ifa_netmask, &mask)) bits = Ones(mask, all);
  }
  freeifaddrs(list);
  return bits > 0 ? bits : all;
}

// Between the networks of several ports.
constexpr const char* kBetween = ", ";

// The networks of a list. What is beyond the most that a rank may have is left out.
std::vector<std::string_view> Split(std::string_view list) {
  std::vector<std::string_view> all;
  while (!list.empty() && all.size() < kMostVerbsPorts) {
    const size_t end = list.find(kBetween);
    all.push_back(list.substr(0, end));
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + std::strlen(kBetween));
  }
  return all;
}

// " partition 5"; "" of the one that all ports are in.
std::string PartitionText(int partition) {
  return partition == kPartitionBits ? "" : " partition " + std::to_string(partition);
}

}  // namespace

std::string NetworkText(std::array<uint8_t, 16> gid, int bits) {
  const int kept = bits + (IsIpv4(gid) ? kGidBits - kIpv4Bits : 0);
  for (int bit = kept; bit < kGidBits; ++bit) {
    gid[static_cast<size_t>(bit / 8)] &= static_cast<uint8_t>(~(0x80 >> (bit % 8)));
  }
  return GidText(gid) + "/" + std::to_string(bits);
}

std::string VerbsNetwork(const VerbsDevice& device) {
  if (!device.ethernet()) {
    return "InfiniBand " + NetworkText(SubnetOf(device.gid()), kSubnetBits) +
           PartitionText(device.pkey() & kPartitionBits);
  }
  return "RoCE " + NetworkText(device.gid(), NetworkBits(device.gid()));
}

std::string NetworksText(std::span<const std::unique_ptr<VerbsDevice>> ports) {
  std::string text;
  for (const auto& port : ports) text += (text.empty() ? "" : kBetween) + VerbsNetwork(*port);
  return text;
}

std::string VerbsAddress(const std::string& endpoint, std::span<const std::unique_ptr<VerbsDevice>> ports) {
  return endpoint + " " + NetworksText(ports);
}

std::string_view EndpointOf(std::string_view address) { return address.substr(0, address.find(' ')); }

std::string_view NetworksOf(std::string_view address) {
  const size_t space = address.find(' ');
  if (space == std::string_view::npos) return {};
  const std::string_view networks = address.substr(space + 1);
  const auto is_printable = [](char c) { return c >= ' ' && c <= '~'; };
  return std::ranges::all_of(networks, is_printable) ? networks : std::string_view();
}

std::vector<std::pair<size_t, size_t>> PairPorts(std::string_view first, std::string_view second) {
  const std::vector<std::string_view> theirs = Split(second);
  std::vector<bool> paired(theirs.size(), false);
  std::vector<std::pair<size_t, size_t>> pairs;
  const std::vector<std::string_view> ours = Split(first);
  for (size_t i = 0; i < ours.size(); ++i) {
    size_t j = 0;
    while (j < theirs.size() && (paired[j] || theirs[j] != ours[i])) ++j;
    if (j == theirs.size()) continue;
    paired[j] = true;
    pairs.emplace_back(i, j);
  }
  if (pairs.empty()) pairs.emplace_back(0, 0);
  return pairs;
}

}  // namespace annulus
