#include "transport/verbs/device/verbs_device.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "base/machine/machine_places.h"

namespace annulus {
namespace {

// Ratings of an address; 0: not usable.
constexpr int kLinkLocal = 1;
constexpr int kIpv6 = 2;
constexpr int kGood = 3;
constexpr int kSameAsRendezvous = 4;

// More than any device has for a host's interfaces; and the largest index that a path can name.
constexpr size_t kMostGids = 1024;
constexpr uint32_t kLargestGidIndex = 255;

constexpr std::array<uint8_t, 12> kMappedIpv4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool IsMappedIpv4(const std::array<uint8_t, 16>& gid) {
  return std::equal(kMappedIpv4.begin(), kMappedIpv4.end(), gid.begin());
}

const char* StateText(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "initialising, which waits for a subnet manager";
    case IBV_PORT_ARMED:
      return "armed, which waits for a subnet manager";
    default:
      return "not active";
  }
}

// The library's plain function fills the part of the struct that all its versions have; flags are in the other part.
int QueryPort(const VerbsApi* api, ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
  if (verbs_context* const extended = verbs_get_ctx_op(context, query_port); extended != nullptr) {
    return extended->query_port(context, port, attributes, sizeof(*attributes));
  }
  return api->query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attributes));
}

void Add(const std::string& reason, std::string* why) { *why += (why->empty() ? "" : "; ") + reason; }

// The codes of ibv_port_attr (InfiniBand architecture specification, PortInfo); 0: another one.
int LanesOf(uint8_t width) {
  constexpr std::pair<uint8_t, int> kLanes[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
  const auto found = std::ranges::find(kLanes, width, &std::pair<uint8_t, int>::first);
  return found != std::end(kLanes) ? found->second : 0;
}

double GbitOfLane(uint8_t speed) {
  constexpr std::pair<uint8_t, double> kSpeeds[] = {{1, 2.5}, {2, 5},   {4, 10},  {8, 10},
                                                    {16, 14}, {32, 25}, {64, 50}, {128, 100}};
  const auto found = std::ranges::find(kSpeeds, speed, &std::pair<uint8_t, double>::first);
  return found != std::end(kSpeeds) ? found->second : 0;
}

}  // namespace

VerbsWish VerbsWish::Of(const TransportConfig& config) {
  const TransportSettings& settings = config.settings;
  return {settings.Text("verbs_device"),
          static_cast<int>(settings.Number("verbs_port")),
          settings.Text("verbs_gid"),
          static_cast<int>(settings.Number("verbs_pkey")),
          config.local_host,
          {config.gpu, NumaNodeOfThisThread()},
          config.turn};
}

bool GidOf(const std::string& text, std::array<uint8_t, 16>* gid) {
  if (inet_pton(AF_INET6, text.c_str(), gid->data()) == 1) return true;
  std::copy(kMappedIpv4.begin(), kMappedIpv4.end(), gid->begin());
  return inet_pton(AF_INET, text.c_str(), gid->data() + kMappedIpv4.size()) == 1;
}

std::string GidText(const std::array<uint8_t, 16>& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (IsMappedIpv4(gid)) {
    inet_ntop(AF_INET, gid.data() + kMappedIpv4.size(), text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
  }
  return text;
}

std::string VerbsDevice::Describe() const {
  return name_ + ", port " + std::to_string(use_.port) +
         (use_.ethernet ? ", RoCE v2 " + GidText(use_.gid) : ", InfiniBand LID " + std::to_string(use_.lid)) +
         (reason_.empty() ? "" : " (" + reason_ + ")");
}

Status VerbsDevice::Find(const VerbsApi* api, const VerbsWish& wish, std::unique_ptr<VerbsDevice>* found) {
  std::vector<std::unique_ptr<VerbsDevice>> all;
  ANNULUS_RETURN_IF_ERROR(FindAll(api, wish, &all));
  *found = std::move(all[0]);
  return Status();
}

Status VerbsDevice::FindAll(const VerbsApi* api, const VerbsWish& wish,
                            std::vector<std::unique_ptr<VerbsDevice>>* found) {
  std::array<uint8_t, 16> wanted;
  if (!wish.gid.empty() && !GidOf(wish.gid, &wanted)) {
    return {Code::kUnsupported, "ANNULUS_VERBS_GID is \"" + wish.gid + "\", which is no numeric IPv4 or IPv6 address"};
  }
  int count = 0;
  ibv_device** const list = api->get_device_list(&count);
  if (list == nullptr || count == 0) {
    const bool no_driver = list == nullptr && errno == ENOSYS;
    if (list != nullptr) api->free_device_list(list);
    return {Code::kUnsupported, no_driver ? "the kernel has no RDMA: load the module ib_uverbs and "
                                            "the card's driver"
                                          : "there is no RDMA device: load the card's driver (rdma "
                                            "link lists devices)"};
  }
  std::string why;
  std::vector<std::pair<int, std::unique_ptr<VerbsDevice>>> usable;  // By rating.
  for (int i = 0; i < count; ++i) {
    const std::string name = api->get_device_name(list[i]);
    if (!wish.device.empty() && name != wish.device) {
      Add(name + " is not the wanted " + wish.device, &why);
      continue;
    }
    if (list[i]->transport_type != IBV_TRANSPORT_IB) {
      Add(name + (list[i]->transport_type == IBV_TRANSPORT_IWARP ? " is an iWARP device" : " is of another kind") +
              ": only InfiniBand and RoCE are used",
          &why);
      continue;
    }
    ibv_context* const context = api->open_device(list[i]);
    if (context == nullptr) {
      Add(name + " cannot be opened: " + std::strerror(errno) + " (see the rights of /dev/infiniband)", &why);
      continue;
    }
    auto device = std::make_unique<VerbsDevice>(api, context, name);
    const int rating = device->Rate(wish, &why);
    if (rating > 0) usable.emplace_back(rating, std::move(device));
  }
  api->free_device_list(list);
  std::ranges::sort(usable, [](const auto& left, const auto& right) {
    if (left.first != right.first) return left.first > right.first;
    return strverscmp(left.second->name().c_str(), right.second->name().c_str()) < 0;
  });
  found->clear();
  for (auto& [rating, device] : usable) {
    if (rating == usable[0].first || rating >= kGood) found->push_back(std::move(device));
  }
  return !found->empty() ? Status() : Status(Code::kUnsupported, "no RDMA device is usable: " + why);
}

int VerbsDevice::Rate(const VerbsWish& wish, std::string* why) {
  ibv_device_attr attributes{};
  if (const int error = api_->query_device(context_, &attributes); error != 0) {
    Add(name_ + " cannot be queried: " + std::strerror(error), why);
    return 0;
  }
  max_cqe_ = attributes.max_cqe;
  most_reads_ = attributes.max_qp_init_rd_atom;
  most_answers_ = attributes.max_qp_rd_atom;
  if (wish.port > attributes.phys_port_cnt) {
    Add(name_ + " has " + std::to_string(attributes.phys_port_cnt) + " ports, not the wanted port " +
            std::to_string(wish.port),
        why);
    return 0;
  }
  int best = 0;
  for (int port = 1; port <= attributes.phys_port_cnt; ++port) {
    if (wish.port != 0 && port != wish.port) continue;
    Use use;
    const int rating = RatePort(static_cast<uint8_t>(port), wish, &use, why);
    if (rating <= best) continue;
    best = rating;
    use_ = use;
  }
  return best;
}

int VerbsDevice::RatePort(uint8_t port, const VerbsWish& wish, Use* use, std::string* why) const {
  const std::string title = name_ + ", port " + std::to_string(port);
  ibv_port_attr attributes{};
  if (const int error = QueryPort(api_, context_, port, &attributes); error != 0) {
    Add(title + " cannot be queried: " + std::strerror(error), why);
    return 0;
  }
  if (attributes.state != IBV_PORT_ACTIVE) {
    Add(title + " is " + StateText(attributes.state) + ": check the cable and the interface", why);
    return 0;
  }
  const bool ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  if (!ethernet && attributes.lid == 0) {
    Add(title + " has no LID: a subnet manager must run", why);
    return 0;
  }
  if (!ethernet && attributes.lid > kMostLid) {
    Add(title + " has the LID " + std::to_string(attributes.lid) + ", which is none of one port", why);
    return 0;
  }
  use->port = port;
  use->ethernet = ethernet;
  use->lid = attributes.lid;
  use->mtu = attributes.active_mtu;
  use->gbit_per_second = LanesOf(attributes.active_width) * GbitOfLane(attributes.active_speed);
  use->needs_global = ethernet || (attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
  const int rating = RateGids(wish, use, why);
  if (rating == 0) return 0;
  // Unused entries of the table are 0.
  __be16 pkey = 0;
  if (api_->query_pkey(context_, port, wish.pkey_index, &pkey) != 0 || (ntohs(pkey) & 0x7fff) == 0) {
    Add(title + " has no partition key " + std::to_string(wish.pkey_index), why);
    return 0;
  }
  use->pkey = ntohs(pkey);
  return rating;
}

int VerbsDevice::RateGids(const VerbsWish& wish, Use* use, std::string* why) const {
  std::vector<ibv_gid_entry> entries(kMostGids);
  const ssize_t count = api_->query_gid_table(context_, entries.data(), entries.size(), 0, sizeof(ibv_gid_entry));
  std::array<uint8_t, 16> wanted{};
  const bool has_wish = !wish.gid.empty() && GidOf(wish.gid, &wanted);
  std::array<uint8_t, 16> own{};
  const bool has_own = GidOf(wish.local_host, &own);
  if (count < 0) {
    Add(name_ + " cannot list its GIDs: " + std::strerror(static_cast<int>(-count)), why);
    return 0;
  }
  int best = 0;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (entry.port_num != use->port || entry.gid_type != (use->ethernet ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB))
      continue;
    if (entry.gid_index > kLargestGidIndex) continue;
    std::array<uint8_t, 16> gid;
    std::copy(std::begin(entry.gid.raw), std::end(entry.gid.raw), gid.begin());
    if (has_wish && gid != wanted) continue;
    int rating = IsMappedIpv4(gid) || !use->ethernet ? kGood : kIpv6;
    if (gid[0] == 0xfe && gid[1] == 0x80 && use->ethernet) rating = kLinkLocal;
    if (has_own && gid == own) rating = kSameAsRendezvous;
    if (rating <= best) continue;
    best = rating;
    use->gid_index = static_cast<int>(entry.gid_index);
    use->gid = gid;
  }
  if (best > 0) return best;
  Add(name_ + ", port " + std::to_string(use->port) +
          (has_wish ? " has no GID " + wish.gid : " has no RoCE v2 GID: give its interface an IP address"),
      why);
  return 0;
}

}  // namespace annulus
