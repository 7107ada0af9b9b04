// The ports of the simulated devices: RoCE, unless a thread says otherwise. Ranks that are threads of one process have
// ports of their own in this respect: the device that a thread opens has the ports that it has set, and packets between
// ports arrive if they are addressed rightly.
//
// Threads: each sets its own; the functions of the library are for any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "transport/verbs/device/verbs_api.h"

namespace annulus {

struct SimulatedMachine;

struct SimulatedPort {
  bool infiniband = false;
  // The rest is of InfiniBand alone.
  uint16_t lid = 1;  // The LID of the first port of the first device; the others have those 100 and 10 above.
  std::array<uint8_t, 16> gid{0xfe, 0x80};
  uint16_t pkey = 0xffff;
  bool needs_global = false;  // Packets without a global header are lost, also within the subnet.
};

// What a thread opens from now on has this port.
void SetPortOfThisThread(const SimulatedPort& port);

// Whether packets from a port, with this address, reach that other one.
bool Arrives(const SimulatedPort& from, const ibv_ah_attr& address, const SimulatedPort& to);

// Which devices are of iWARP, and where the system tells of each device: in a folder below machine.sysfs, with its
// name; "": nowhere. No test changes that while a program looks for devices.
void SetDevices(const SimulatedMachine& machine);

// Sets the functions of the library for devices, their ports and their events.
void SetPortFunctions(VerbsApi* api);

}  // namespace annulus
