#include "tests/verbs/provider/simulated_port.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

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

// The one entry of the list, which is otherwise unused.
ibv_device* TheDevice() {
  static ibv_device device{};
  return &device;
}

ibv_device** GetDeviceList(int* count) {
  const std::lock_guard lock(Device().mutex());
  *count = Device().machine.has_device ? 1 : 0;
  auto** const list = new ibv_device* [2] {};
  if (*count > 0) list[0] = TheDevice();
  return list;
}

void FreeDeviceList(ibv_device** list) { delete[] list; }

const char* GetDeviceName(ibv_device*) { return "sim0"; }

ibv_context* OpenDevice(ibv_device* device) {
  if (SimulatedRefusals::Refuses(SimulatedCall::kOpenDevice)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  auto* const context = Device().Count(new NicContext{});
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
  attributes->phys_port_cnt = 1;
  attributes->max_cqe = Device().machine.most_completions;
  return 0;
}

int QueryPort(ibv_context* context, uint8_t, _compat_ibv_port_attr* compatible) {
  if (SimulatedRefusals::Refuses(SimulatedCall::kQueryPort)) return errno;
  const std::lock_guard lock(Device().mutex());
  auto* const attributes = reinterpret_cast<ibv_port_attr*>(compatible);
  attributes->state = Device().machine.port_state;
  attributes->active_mtu = IBV_MTU_4096;
  const SimulatedPort& port = PortOf(context);
  attributes->link_layer = port.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  if (port.infiniband) attributes->lid = port.lid;
  if (port.needs_global) attributes->flags = IBV_QPF_GRH_REQUIRED;
  return 0;
}

// One address that must not be used, one of IPv6, and the one of IPv4 behind a gap.
ssize_t QueryGidTable(ibv_context* context, ibv_gid_entry* entries, size_t most, uint32_t, size_t) {
  if (SimulatedRefusals::Refuses(SimulatedCall::kQueryGids)) return -errno;
  const std::lock_guard lock(Device().mutex());
  if (Device().machine.gid_error != 0) return -Device().machine.gid_error;
  if (PortOf(context).infiniband) {
    entries[0] = {{}, 0, 1, IBV_GID_TYPE_IB, 0};
    std::copy_n(PortOf(context).gid.begin(), 16, entries[0].gid.raw);
    return 1;
  }
  ibv_gid link_local{};
  link_local.raw[0] = 0xfe;
  link_local.raw[1] = 0x80;
  ibv_gid mapped{};
  mapped.raw[10] = mapped.raw[11] = 0xff;
  mapped.raw[12] = 127;
  mapped.raw[15] = 1;
  const std::array<ibv_gid_entry, 3> table = {
      ibv_gid_entry{mapped, 0, 1, IBV_GID_TYPE_ROCE_V1, 1}, ibv_gid_entry{link_local, 1, 1, IBV_GID_TYPE_ROCE_V2, 1},
      ibv_gid_entry{mapped, Device().machine.gid_index, 1, IBV_GID_TYPE_ROCE_V2, 1}};
  const size_t count = std::min<size_t>(most, Device().machine.has_roce_v2 ? table.size() : 1);
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
