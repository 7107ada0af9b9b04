#include "transport/verbs/device/verbs_ports.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/machine/machine_places.h"
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

const ibv_device& CardOf(const VerbsDevice& port) { return *port.context()->device; }

// Why this one was taken of the usable ones, or how near it is; "" when there is nothing to say.
std::string ReasonFor(const VerbsDevice& port, const VerbsDevice& first, const VerbsNeighbour& near) {
  const VerbsDistance distance = DistanceOf(CardOf(port), near.gpu);
  if (!distance.text.empty()) {
    return std::string(NameOf(distance.nearness)) + " to GPU " + near.gpu + ", " + distance.text;
  }
  const auto is_near = [&near](const VerbsDevice& each) { return PlaceOf(CardOf(each)).numa_node == near.numa_node; };
  if (near.numa_node < 0 || !is_near(port) || is_near(first)) return "";
  return "on NUMA node " + std::to_string(near.numa_node) + " as the rank's CPUs, unlike " + first.name();
}

// Of the usable devices in the network of the best one, the fastest; of these the nearest, and of several the one whose
// turn it is.
Status FindBest(const VerbsApi* api, const VerbsWish& wish, std::unique_ptr<VerbsDevice>* found) {
  VerbsPorts usable;
  ANNULUS_RETURN_IF_ERROR(VerbsDevice::FindAll(api, wish, &usable));
  const std::string network = VerbsNetwork(*usable[0]);
  std::vector<VerbsDevice*> near;
  int least = 0;
  double fastest = 0;
  const auto is_other = [&](const auto& each) { return VerbsNetwork(*each) != network; };
  for (const auto& each : usable) fastest = std::max(fastest, is_other(each) ? 0 : each->gbit_per_second());
  for (const auto& each : usable) {
    if (is_other(each) || each->gbit_per_second() < fastest) continue;
    const int steps = StepsFrom(CardOf(*each), wish.near);
    if (steps < least) near.clear();
    if (near.empty()) least = steps;
    if (steps == least) near.push_back(each.get());
  }
  // Ranks that are near other devices may have every second turn, or every fourth.
  const auto turn = static_cast<size_t>(wish.turn);
  VerbsDevice* const chosen = near[(turn + turn / near.size()) % near.size()];
  std::string why = ReasonFor(*chosen, *usable[0], wish.near);
  if (chosen != near[0]) {
    why += (why.empty() ? "" : "; ") + ("its turn of " + std::to_string(near.size())) + " that are equally good";
  }
  chosen->SetReason(why);
  *found = std::move(*std::ranges::find_if(usable, [chosen](const auto& each) { return each.get() == chosen; }));
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
