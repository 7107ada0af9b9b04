// TransportInfo: how a transport describes itself. All that the library knows of a backend is in here, as data.
//
// Each backend defines one constant in its own folder, and the list of transport/select names it.
//
// Threads: constants and plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/link_costs.h"
#include "transport/transport.h"

namespace annulus {

// What the costs of a link depend on.
struct LinkPlace {
  bool same_host = false;
  double ranks_per_core = 1;  // More than 1 where ranks share cores.
};

struct TransportInfo {
  // The word for programs, in lower case: in ANNULUS_TRANSPORT, logs, counters, traces and tuning files.
  const char* name;
  // The words for people, in the middle of a sentence.
  const char* title;
  // Links ranks of one host only.
  bool same_host_only;
  // A message costs system calls, so that fewer of them are better than fewer bytes.
  bool by_system_calls;
  // What the hellos of its links say (docs/wire_protocol.md lists the numbers); 0: it sends none.
  uint8_t hello_purpose;
  // The settings, numbers, on which measured costs depend, by name. Tuning files keep them.
  std::span<const char* const> cost_settings;
  // What links cost as long as nobody has measured them: for links whose ranks have host and network for themselves.
  // ranks_per_core stays 1.
  LinkCosts (*costs)(const LinkPlace& place);
  // The most that one link takes of a rank's memory, in bytes: LinkMemory::staging and bookkeeping. Depends on slots,
  // slot_bytes and settings.
  size_t (*link_memory)(const TransportConfig& config);
  std::unique_ptr<Transport> (*create)(const TransportConfig& config);
};

// Transports to choose from, the preferred one first.
using TransportList = std::span<const TransportInfo* const>;

}  // namespace annulus
