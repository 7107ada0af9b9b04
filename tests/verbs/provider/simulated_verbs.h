// A stand-in for libibverbs: one device or several, sim0, sim1 and so on, whose queue pairs connect ranks of this
// process. What devices may do, they do: they work off queue pairs in a random order, whichever device has them,
// deliver completions late, and raise events. A READ is answered bit by bit, and later than what is posted behind it is
// carried out. What a program must not do fails as on a device, with the completion that verbs specifies, and is
// counted.
//
// Memory of GPUs comes as a descriptor of a file that has its content: what the stand-in for CUDA's driver gives.
//
// Not modelled: packets and time.
//
// Threads: all functions may be called from any thread. A thread of its own plays the device.
#pragma once

#include <array>
#include <climits>
#include <cstdint>
#include <vector>

#include "transport/verbs/device/verbs_api.h"

namespace annulus {

constexpr int kMostSimulatedDevices = 8;

// What the machine has; read whenever a program asks.
struct SimulatedMachine {
  bool has_device = true;
  int devices = 1;
  int ports = 1;          // Ports of each device. Each is in a network of its own.
  uint32_t down = 0;      // Devices whose ports are down, one bit each.
  uint32_t iwarp = 0;     // Devices of iWARP, one bit each.
  bool reversed = false;  // The library lists the last device first.
  uint32_t fast = 0;      // Devices whose links have ten times the rate of the others', one bit each.
  int slow_device = -1;   // Carries out a request at one chance of `slowness`; 0: at none.
  uint64_t slowness = 0;
  ibv_port_state port_state = IBV_PORT_ACTIVE;
  bool has_roce_v2 = true;
  int dma_buf_error = 0;                        // The errno with which memory of GPUs is refused.
  bool hides_from_gpus = false;                 // A GPU sees what was read into its memory after ShowWrites.
  uint64_t most_dma_buf_bytes = UINT64_MAX;     // As the next one, of memory of GPUs.
  uint64_t most_registered_bytes = UINT64_MAX;  // Registrations beyond it fail, as beyond a limit on locked memory.
  uint32_t most_inline_bytes = 512;
  int most_completions = 32768;  // Most completions in one queue.
  int queue_room = INT_MAX;      // Completions that a queue holds, whatever was asked for; one more overruns it.
  int poll_error = 0;            // What each poll of a queue returns; 0: what there is.
  bool hides_receives = false;   // No message finds a receive, though they are posted.
  int most_reads = 16;           // READs that a queue pair has under way, and that it answers, at a time.
  uint32_t gid_index = 5;        // Index of the IPv4 address.
  int gid_error = 0;             // The errno with which the table of addresses cannot be read.
  uint16_t pkey = 0xffff;        // The only partition key; 0: an entry that is not used.
  // The errno with which queue pairs are destroyed. With EIO they are gone all the same, as the device is.
  int destroy_error = 0;
  const char* sysfs = "";  // Folder in which the system tells of each device.
  // The kernel copies pages that devices use for a child; Linux does since 5.12.
  bool copies_on_fork = true;
  int fork_error = 0;  // The errno with which the library cannot keep such pages out of children.
};

// What went wrong, or was made to.
struct SimulatedCounts {
  uint64_t requests = 0;                                       // Carried out.
  uint64_t failed = 0;                                         // Requests that failed by themselves.
  std::array<uint64_t, kMostSimulatedDevices> device_bytes{};  // Sent and written, by device of the sender.
  uint64_t written_bytes = 0;                                  // By RDMA writes.
  uint64_t sent_bytes = 0;                                     // By sends.
  uint64_t read_in_place = 0;   // Bytes of these that came from registered memory of users: what no peer may write.
  uint64_t read_from_gpus = 0;  // Bytes of these that came from memory of GPUs.
  uint64_t read_bytes = 0;      // By READs that have completed.
  uint64_t read_landed = 0;     // Those of them that went into registered memory of users.
  uint64_t read_into_gpus = 0;  // Those of them that went into memory of GPUs.
  uint64_t read_stalls = 0;     // READs that were posted though as many as allowed were under way.
  uint64_t completions = 0;     // Delivered.
  uint64_t not_ready = 0;       // Messages that found no receive posted.
  uint64_t overruns = 0;        // Completions for which the queue had no room.
  uint64_t refused_posts = 0;   // Posts to a queue that was full, or of a wrong state.
  uint64_t busy = 0;            // Objects that were to be destroyed while something still used them; they stay.
  uint64_t waiting =
      0;  // Requests to carry out and completions to deliver, now, but those of a device that stands still.
  uint64_t objects = 0;           // Devices, domains, regions, queues and pairs that exist.
  uint64_t registered_bytes = 0;  // Bytes of the regions that exist.
  uint64_t dma_buf_bytes = 0;     // Those of them that are memory of GPUs.
  uint64_t registrations = 0;     // Regions that ever did.
  // Regions that were registered though a child would get their pages, and the kernel does not copy them.
  uint64_t unsafe_regions = 0;
};

class SimulatedVerbs {
 public:
  static const VerbsApi* Api();

  // The library forgets that it keeps pages out of children, and whether it is too late for that.
  static void SetMachine(const SimulatedMachine& machine);
  static SimulatedCounts Counts();

  // Lets the request that is carried out after `requests` more fail with `status`.
  static void FailAfter(uint64_t requests, ibv_wc_status status);
  // Lets the slow device carry out that many requests though it stands still.
  static void Allow(uint64_t requests);
  // As the flush of a GPU's driver does.
  static void ShowWrites();
  // Raises an event of the device, or of a port of it, in all of its contexts.
  static void RaiseEvent(ibv_event_type type, int port = 1);
  // Moves all queue pairs into their error state, as devices do whose driver gives up, or those of one device.
  static void FailPairs(int device = -1);
  // The order of everything that follows; tests print it.
  static void Seed(uint64_t seed);
};

}  // namespace annulus
