#include "transport/verbs/device/verbs_near.h"

namespace annulus {
namespace {

// "/sys" of "/sys/class/infiniband/mlx5_0"; "" where the library names another folder.
std::string SysfsOf(const ibv_device& card) {
  const std::string path = card.ibdev_path;
  const size_t end = path.rfind("/class/infiniband/");
  return end == std::string::npos ? "" : path.substr(0, end);
}

}  // namespace

MachinePlace PlaceOf(const ibv_device& card) { return PlaceAt(std::string(card.ibdev_path) + "/device"); }

MachinePlace PlaceBesides(const ibv_device& card, const std::string& pci_address) {
  const std::string sysfs = SysfsOf(card);
  return sysfs.empty() ? MachinePlace() : PlaceOfPciDevice(pci_address, sysfs);
}

VerbsDistance DistanceOf(const ibv_device& card, const std::string& pci_address) {
  const MachinePlace first = PlaceOf(card);
  const MachinePlace second = PlaceBesides(card, pci_address);
  return {NearnessOf(first, second), NearnessText(first, second)};
}

int StepsFrom(const ibv_device& card, const VerbsNeighbour& neighbour) {
  constexpr int kMostClasses = 16;
  const MachinePlace place = PlaceOf(card);
  const MachinePlace cpus{.way = {}, .numa_node = neighbour.numa_node};
  const int to_cpus = static_cast<int>(NearnessOf({.way = {}, .numa_node = place.numa_node}, cpus));
  return static_cast<int>(NearnessOf(place, PlaceBesides(card, neighbour.gpu))) * kMostClasses + to_cpus;
}

}  // namespace annulus
