#include "collectives/comm/places/explain_places.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/machine/machine_places.h"
#include "collectives/comm/communicator.h"
#include "collectives/comm/exchange_values.h"
#include "collectives/reduce/memory_domains.h"
#include "transport/memory/device_exports.h"

namespace annulus {
namespace {

// What a rank tells the others. Texts end with a zero, or are full.
struct Told {
  std::array<char, 64> host{};
  std::array<char, 32> gpu_address{};
  std::array<char, 64> gpu_name{};
  std::array<char, 1016> devices{};
  int32_t gpu = -1;        // Number of its GPU; -1: none.
  int32_t numa_node = -1;  // Of its CPUs; -1: several, or not known.
};

// Ranks of one host whose GPUs are compared with each other.
constexpr size_t kMostCompared = 64;

// How a rank's GPU reaches those of the ranks of its host, in their order.
struct ToldReach {
  std::array<uint8_t, kMostCompared> reach{};     // DeviceReach.
  std::array<uint8_t, kMostCompared> nearness{};  // Nearness.
};

template <size_t kBytes>
void Write(const std::string& text, std::array<char, kBytes>* to) {
  std::copy_n(text.begin(), std::min(text.size(), kBytes), to->begin());
}

// It comes from another process, and people read it on a terminal.
template <size_t kBytes>
std::string Read(const std::array<char, kBytes>& from) {
  std::string text(from.begin(), std::ranges::find(from, '\0'));
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

Told TellOf(const Communicator& communicator) {
  const MachineUse& machine = communicator.machine();
  Told told;
  std::array<char, 64> host{};
  gethostname(host.data(), host.size() - 1);
  Write(host.data(), &told.host);
  Write(machine.gpu_address, &told.gpu_address);
  Write(machine.gpu_name, &told.gpu_name);
  Write(machine.devices, &told.devices);
  told.gpu = machine.gpu;
  told.numa_node = NumaNodeOfThisThread(communicator.resources().sysfs + "/devices/system/node");
  return told;
}

int HostOf(const Topology& layout, int rank) { return layout.host_of.empty() ? 0 : layout.host_of[rank]; }

// The first ranks of that host.
std::vector<int> RanksOf(const Topology& layout, int host) {
  std::vector<int> ranks;
  for (int rank = 0; rank < layout.nranks && ranks.size() < kMostCompared; ++rank) {
    if (HostOf(layout, rank) == host) ranks.push_back(rank);
  }
  return ranks;
}

ToldReach ReachOf(const Communicator& communicator, const std::vector<Told>& all) {
  ToldReach told;
  const Resources& resources = communicator.resources();
  const DeviceExports* const devices = resources.domains != nullptr ? resources.domains->exports() : nullptr;
  const MachineUse& own = communicator.machine();
  const Topology& layout = communicator.topology();
  const std::vector<int> ranks = RanksOf(layout, HostOf(layout, communicator.rank()));
  for (size_t i = 0; i < ranks.size(); ++i) {
    told.nearness[i] = static_cast<uint8_t>(Nearness::kUnknown);
    const std::string address = Read(all[static_cast<size_t>(ranks[i])].gpu_address);
    if (devices == nullptr || address.empty() || address == own.gpu_address || own.gpu < 0) continue;
    told.reach[i] = static_cast<uint8_t>(devices->ReachOf(own.gpu, address));
    told.nearness[i] = static_cast<uint8_t>(
        NearnessOf(PlaceOfPciDevice(own.gpu_address, resources.sysfs), PlaceOfPciDevice(address, resources.sysfs)));
  }
  return told;
}

std::string PlaceText(const Told& told, int rank, int host) {
  std::string text = "#   rank " + std::to_string(rank) + ": host " + std::to_string(host);
  if (const std::string name = Read(told.host); !name.empty()) text += " (" + name + ")";
  if (told.numa_node >= 0) text += ", CPUs on NUMA node " + std::to_string(told.numa_node);
  if (told.gpu >= 0) {
    const std::string address = Read(told.gpu_address);
    text += ", GPU " + std::to_string(told.gpu) + (address.empty() ? "" : " at " + address) + " (" +
            Read(told.gpu_name) + ")";
  }
  if (const std::string devices = Read(told.devices); !devices.empty()) text += ", " + devices;
  return text + "\n";
}

std::string ReachText(uint8_t reach, uint8_t nearness) {
  const std::string name = nearness <= static_cast<uint8_t>(Nearness::kSys) ? NameOf(Nearness{nearness}) : "";
  const std::string where = name.empty() ? "" : " (" + name + ")";
  switch (static_cast<DeviceReach>(reach)) {
    case DeviceReach::kNone:
      return "not" + where;
    case DeviceReach::kPci:
      return "by PCIe" + where;
    case DeviceReach::kLink:
      return "by NVLink" + where;
    case DeviceReach::kUnknown:
      break;
  }
  return "in a way that is not known" + where;
}

// How the GPU of that rank reaches those of the others of its host; "" when there are none.
std::string ReachesText(const std::vector<Told>& all, const ToldReach& told, const std::vector<int>& ranks, int rank) {
  const Told& own = all[static_cast<size_t>(rank)];
  if (own.gpu < 0) return "";
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Told& other = all[static_cast<size_t>(ranks[i])];
    if (ranks[i] == rank || other.gpu < 0) continue;
    const bool is_same = own.gpu_address[0] != '\0' && own.gpu_address == other.gpu_address;
    text += (text.empty() ? " rank " : ", rank ") + std::to_string(ranks[i]) + " " +
            (is_same ? "has the same" : ReachText(told.reach[i], told.nearness[i]));
  }
  return text.empty() ? "" : "#   rank " + std::to_string(rank) + ":" + text + "\n";
}

}  // namespace

Status ExplainPlaces(annulus_comm_t* comm, std::string* text) {
  auto* const communicator = reinterpret_cast<Communicator*>(comm);
  text->clear();
  std::vector<Told> all;
  ANNULUS_RETURN_IF_ERROR(ExchangeValues(communicator, TellOf(*communicator), &all));
  std::vector<ToldReach> reaches;
  ANNULUS_RETURN_IF_ERROR(ExchangeValues(communicator, ReachOf(*communicator, all), &reaches));
  if (std::ranges::none_of(all, [](const Told& each) { return each.gpu >= 0 || each.devices[0] != '\0'; })) {
    return Status();
  }
  const Topology& layout = communicator->topology();
  std::string gpus;
  *text = "# where the ranks are:\n";
  for (int rank = 0; rank < layout.nranks; ++rank) {
    const int host = HostOf(layout, rank);
    *text += PlaceText(all[static_cast<size_t>(rank)], rank, host);
    gpus += ReachesText(all, reaches[static_cast<size_t>(rank)], RanksOf(layout, host), rank);
  }
  if (!gpus.empty()) *text += "# how the GPUs of a host reach each other:\n" + gpus;
  return Status();
}

}  // namespace annulus
