#include "tests/verbs/provider/simulated_port.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "tests/verbs/provider/simulated_nic.h"
#include "tests/verbs/provider/simulated_refusals.h"

namespace annulus {
namespace {

SimulatedNic& Device() { return SimulatedNic::Get(); }

SimulatedPort& PortOfThisThread() {
  thread_local SimulatedPort port;
  return port;
}

const SimulatedPort& PortOf(const ibv_context* context) { return static_cast<const NicContext*>(context)->port; }
int NumberOf(const ibv_context* context) { return static_cast<const NicContext*>(context)->number; }

// The entries of the list, which are otherwise unused.
std::array<ibv_device, kMostSimulatedDevices>& TheDevices() {
  static std::array<ibv_device, kMostSimulatedDevices> devices{};
  return devices;
}
size_t IndexOf(const ibv_device* device) { return static_cast<size_t>(device - TheDevices().data()); }

bool IsIwarp(int device) { return (Device().machine.iwarp >> device & 1) != 0; }

const char* GetDeviceName(ibv_device* device) {
  static constexpr const char* kNames[] = {"sim0", "sim1", "sim2", "sim3", "sim4", "sim5", "sim6", "sim7"};
  return kNames[IndexOf(device)];
}

ibv_device** GetDeviceList(int* count) {
  const std::lock_guard lock(Device().mutex());
  *count = Device().machine.has_device ? Device().machine.devices : 0;
  auto** const list = new ibv_device* [kMostSimulatedDevices + 1] {};
  for (int i = 0; i < *count; ++i) {
    const int number = Device().machine.reversed ? *count - 1 - i : i;
    list[i] = &TheDevices()[static_cast<size_t>(number)];
  }
  return list;
}

void FreeDeviceList(ibv_device** list) { delete[] list; }

// 127.0.0.1 of the first port; those of others, 127.0.device.port, no interface has.
ibv_gid MappedGid(int device, int port) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 127;
  gid.raw[14] = static_cast<uint8_t>(device);
  gid.raw[15] = static_cast<uint8_t>(port);
  return gid;
}

ibv_gid LinkLocalGid() {
  ibv_gid gid{};
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  return gid;
}

// What drivers of iWARP list: the interface's own number.
ibv_gid MacGid(int device) {
  ibv_gid gid{};
  gid.raw[0] = 0x02;
  gid.raw[5] = static_cast<uint8_t>(device);
  return gid;
}

bool AreEqual(const ibv_gid& left, const ibv_gid& right) { return std::memcmp(left.raw, right.raw, 16) == 0; }

ibv_context* OpenDevice(ibv_device* device) {
  if (SimulatedRefusals::Refuses(SimulatedCall::kOpenDevice)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  auto* const context = Device().Count(new NicContext{});
  context->number = static_cast<int>(IndexOf(device));
  context->port = PortOfThisThread();
  context->device = device;
  context->async_fd = eventfd(0, kNicDescriptorFlags);
  context->cmd_fd = -1;
  SetDataFunctions(context);
  Device().contexts.push_back(context);
  return context;
}

int CloseDevice(ibv_context* context) {
  const std::lock_guard lock(Device().mutex());
  std::erase(Device().contexts, static_cast<NicContext*>(context));
  close(context->async_fd);
  Device().Delete<NicContext>(context);
  return 0;
}

int QueryDevice(ibv_context*, ibv_device_attr* attributes) {
  if (SimulatedRefusals::Refuses(SimulatedCall::kQueryDevice)) return errno;
  const std::lock_guard lock(Device().mutex());
  *attributes = {};
  attributes->phys_port_cnt = static_cast<uint8_t>(Device().machine.ports);
  attributes->max_cqe = Device().machine.most_completions;
  attributes->max_qp_rd_atom = attributes->max_qp_init_rd_atom = Device().machine.most_reads;
  return 0;
}

uint16_t LidOf(const ibv_context* context, int port) {
  return static_cast<uint16_t>(PortOf(context).lid + 100 * NumberOf(context) + 10 * (port - 1));
}

int QueryPort(ibv_context* context, uint8_t number, _compat_ibv_port_attr* compatible) {
  if (SimulatedRefusals::Refuses(SimulatedCall::kQueryPort)) return errno;
  const std::lock_guard lock(Device().mutex());
  auto* const attributes = reinterpret_cast<ibv_port_attr*>(compatible);
  const bool is_down = (Device().machine.down >> NumberOf(context) & 1) != 0;
  attributes->state = is_down ? IBV_PORT_DOWN : Device().machine.port_state;
  attributes->active_mtu = IBV_MTU_4096;
  attributes->active_width = 2;  // Four lanes of 100 or 10 Gbit/s.
  attributes->active_speed = (Device().machine.fast >> NumberOf(context) & 1) != 0 ? 128 : 4;
  const SimulatedPort& port = PortOf(context);
  attributes->link_layer = port.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  if (port.infiniband) attributes->lid = LidOf(context, number);
  if (port.needs_global) attributes->flags = IBV_QPF_GRH_REQUIRED;
  return 0;
}

// Gives for each port one address that must not be used, one of IPv6, and the one of IPv4, behind a gap.
ssize_t QueryGidTable(ibv_context* context, ibv_gid_entry* entries, size_t most, uint32_t, size_t) {
  if (SimulatedRefusals::Refuses(SimulatedCall::kQueryGids)) return -errno;
  const std::lock_guard lock(Device().mutex());
  const SimulatedMachine& machine = Device().machine;
  if (machine.gid_error != 0) return -machine.gid_error;
  std::vector<ibv_gid_entry> table;
  for (int port = 1; port <= machine.ports; ++port) {
    const auto number = static_cast<uint32_t>(port);
    if (PortOf(context).infiniband) {
      table.push_back({{}, 0, number, IBV_GID_TYPE_IB, 0});
      std::copy_n(PortOf(context).gid.begin(), 16, table.back().gid.raw);
      continue;
    }
    if (IsIwarp(NumberOf(context))) {
      table.push_back({MacGid(NumberOf(context)), 0, number, IBV_GID_TYPE_IB, 0});
      continue;
    }
    const ibv_gid mapped = MappedGid(NumberOf(context), port);
    table.push_back({mapped, 0, number, IBV_GID_TYPE_ROCE_V1, 1});
    if (!machine.has_roce_v2) continue;
    table.push_back({LinkLocalGid(), 1, number, IBV_GID_TYPE_ROCE_V2, 1});
    table.push_back({mapped, machine.gid_index, number, IBV_GID_TYPE_ROCE_V2, 1});
  }
  const size_t count = std::min<size_t>(most, table.size());
  std::copy_n(table.begin(), count, entries);
  return static_cast<ssize_t>(count);
}

int QueryPkey(ibv_context* context, uint8_t, int index, __be16* pkey) {
  if (SimulatedRefusals::Refuses(SimulatedCall::kQueryPkey)) return -1;
  const std::lock_guard lock(Device().mutex());
  *pkey = htons(PortOf(context).infiniband ? PortOf(context).pkey : Device().machine.pkey);
  return index == 0 ? 0 : -1;
}

int GetAsyncEvent(ibv_context* context, ibv_async_event* event) {
  const std::lock_guard lock(Device().mutex());
  eventfd_t one;
  if (eventfd_read(context->async_fd, &one) != 0) return -1;
  auto& news = static_cast<NicContext*>(context)->news;
  *event = news.front();
  news.pop_front();
  return 0;
}

void AckAsyncEvent(ibv_async_event*) {}

}  // namespace

void SetPortOfThisThread(const SimulatedPort& port) { PortOfThisThread() = port; }

bool Arrives(const SimulatedPort& from, const ibv_ah_attr& address, const SimulatedPort& to) {
  if (from.infiniband != to.infiniband) return false;
  if (!from.infiniband) return address.is_global != 0;
  const bool one_partition = ((from.pkey ^ to.pkey) & 0x7fff) == 0 && ((from.pkey | to.pkey) & 0x8000) != 0;
  const bool global = address.is_global != 0;
  if (!one_partition || (from.needs_global && !global)) return false;
  if (global && std::memcmp(address.grh.dgid.raw, to.gid.data(), to.gid.size()) != 0) return false;
  // Bytes 6 and 7 name the subnet, whether or not there is a router's LID before them.
  if (std::equal(from.gid.begin() + 6, from.gid.begin() + 8, to.gid.begin() + 6)) return address.dlid == to.lid;
  return global && address.grh.hop_limit > 1 && address.dlid == (to.gid[4] << 8 | to.gid[5]);
}

SimulatedPort PortOf(const NicPair& pair) {
  SimulatedPort port = PortOf(pair.context);
  port.lid = LidOf(pair.context, pair.port);
  return port;
}

bool IsGidOf(const NicPair& pair, const ibv_gid& gid) {
  return AreEqual(gid, MappedGid(NumberOf(pair.context), pair.port)) || AreEqual(gid, LinkLocalGid());
}

void SetDevices(const SimulatedMachine& machine) {
  const std::string sysfs = machine.sysfs;
  for (ibv_device& device : TheDevices()) {
    const auto kind = (machine.iwarp >> IndexOf(&device) & 1) != 0 ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
    const std::string path = sysfs.empty() ? "" : sysfs + "/" + GetDeviceName(&device);
    // Programs that know the device may be reading it.
    if (kind != device.transport_type) device.transport_type = kind;
    if (path != device.ibdev_path) std::snprintf(device.ibdev_path, sizeof(device.ibdev_path), "%s", path.c_str());
  }
}

void SetPortFunctions(VerbsApi* api) {
  api->get_device_list = GetDeviceList;
  api->free_device_list = FreeDeviceList;
  api->get_device_name = GetDeviceName;
  api->open_device = OpenDevice;
  api->close_device = CloseDevice;
  api->query_device = QueryDevice;
  api->query_port = QueryPort;
  api->query_gid_table = QueryGidTable;
  api->query_pkey = QueryPkey;
  api->get_async_event = GetAsyncEvent;
  api->ack_async_event = AckAsyncEvent;
}

}  // namespace annulus
