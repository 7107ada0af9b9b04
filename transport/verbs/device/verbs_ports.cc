#include "transport/verbs/device/verbs_ports.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "transport/verbs/device/verbs_near.h"

namespace annulus {
namespace {

constexpr int kLargestPort = 255;

Status WrongList(const std::string& devices, const std::string& why) {
  return {Code::kUnsupported, "ANNULUS_VERBS_DEVICE is \"" + devices + "\": " + why};
}

// Reads "name" or "name:port". Returns false when it is neither.
bool ReadPort(std::string_view entry, VerbsWish* wish) {
  const size_t colon = entry.find(':');
  wish->device = entry.substr(0, colon);
  if (colon == std::string_view::npos) return !entry.empty();
  const char* const end = entry.data() + entry.size();
  const auto [stop, error] = std::from_chars(entry.data() + colon + 1, end, wish->port);
  return colon > 0 && error == std::errc() && stop == end && wish->port >= 1 && wish->port <= kLargestPort;
}

Status ReadList(const VerbsWish& wish, std::vector<VerbsWish>* wishes) {
  std::string_view left = wish.device;
  for (bool more = true; more;) {
    const size_t comma = left.find(',');
    VerbsWish each = wish;
    const std::string_view entry = left.substr(0, comma);
    if (!ReadPort(entry, &each)) {
      return WrongList(wish.device, "\"" + std::string(entry) + "\" is neither a device nor device:port");
    }
    wishes->push_back(std::move(each));
    more = comma != std::string_view::npos;
    if (more) left.remove_prefix(comma + 1);
  }
  if (wishes->size() <= kMostVerbsPorts) return Status();
  return WrongList(wish.device, "at most " + std::to_string(kMostVerbsPorts) + " ports are used");
}

// The first of the best devices, or one in its network that is nearer.
Status FindBest(const VerbsApi* api, const VerbsWish& wish, std::unique_ptr<VerbsDevice>* found) {
  VerbsPorts best;
  ANNULUS_RETURN_IF_ERROR(VerbsDevice::FindAll(api, wish, &best));
  const auto is_near = [&](const auto& port) {
    return wish.numa_node >= 0 && NumaNodeOf(*port->context()->device) == wish.numa_node &&
           VerbsNetwork(*port) == VerbsNetwork(*best[0]);
  };
  const auto near = std::ranges::find_if(best, is_near);
  const size_t chosen = near == best.end() ? 0 : static_cast<size_t>(near - best.begin());
  if (chosen != 0) {
    best[chosen]->SetReason("on NUMA node " + std::to_string(wish.numa_node) + " as the rank's CPUs, unlike " +
                            best[0]->name());
  }
  *found = std::move(best[chosen]);
  return Status();
}

}  // namespace

size_t MostPorts(std::string_view devices) {
  return std::min(kMostVerbsPorts, static_cast<size_t>(std::ranges::count(devices, ',')) + 1);
}

Status FindPorts(const VerbsApi* api, const VerbsWish& wish, VerbsPorts* found, std::string* left_out) {
  std::vector<VerbsWish> wishes;
  if (wish.device.empty()) {
    wishes.push_back(wish);
  } else {
    ANNULUS_RETURN_IF_ERROR(ReadList(wish, &wishes));
  }
  found->clear();
  left_out->clear();
  for (const VerbsWish& each : wishes) {
    std::unique_ptr<VerbsDevice> port;
    if (const Status status = FindBest(api, each, &port); !status.ok()) {
      if (wishes.size() == 1) return status;
      *left_out += (left_out->empty() ? "" : "; ") + status.message();
      continue;
    }
    for (const auto& other : *found) {
      if (other->name() != port->name() || other->port() != port->port()) continue;
      return WrongList(wish.device, port->name() + ", port " + std::to_string(port->port()) + " comes twice");
    }
    found->push_back(std::move(port));
  }
  if (found->empty()) return {Code::kUnsupported, *left_out};
  if (NetworksText(*found).size() <= kLongestNetworks) return Status();
  return WrongList(wish.device, "the networks of so many ports do not fit into the address that ranks tell each other");
}

}  // namespace annulus
