// TransportInfo: how a transport describes itself. It holds everything that the library knows about a backend, as data.
//
// Each backend defines one constant in its own folder, and the list of transport/select names it.
//
// Threads: constants and plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "transport/link_costs.h"
#include "transport/transport.h"

namespace annulus {

struct LinkStream;  // transport/continuable.h

// What the costs of a link depend on.
struct LinkPlace {
  bool same_host = false;
  double ranks_per_core = 1;  // More than 1 where ranks share cores.
};

struct TransportInfo {
  // Name for programs, in lower case: in ANNULUS_TRANSPORT, logs, counters, traces and tuning files.
  const char* name;
  // Name for people, in the middle of a sentence.
  const char* title;
  // Whether it links only ranks of one host.
  bool same_host_only;
  // Whether it needs a device that a host may lack.
  bool needs_device;
  // Whether it sends in clear over networks, whatever the user wants.
  bool in_clear;
  // Whether a message costs system calls, so that sending fewer messages is better than sending fewer bytes.
  bool by_system_calls;
  // Purpose in the hellos of its links (docs/wire_protocol.md lists the numbers); 0: it sends no hellos.
  uint8_t hello_purpose;
  // The networks that a rank's address is in, separated by ", ": ranks that share one reach each other. Null: any two
  // ranks do.
  std::string_view (*networks)(std::string_view address);
  // Names of the numeric settings that measured costs depend on. Tuning files keep them.
  std::span<const char* const> cost_settings;
  // Costs of links until somebody has measured them, for links whose ranks have host and network for themselves.
  // ranks_per_core stays 1.
  LinkCosts (*costs)(const LinkPlace& place);
  // Largest amount of a rank's memory that one link takes, in bytes: LinkMemory::staging and bookkeeping. Depends on
  // slots, slot_bytes and settings.
  size_t (*link_memory)(const TransportConfig& config);
  std::unique_ptr<Transport> (*create)(const TransportConfig& config);
  // Makes one end of a link out of a stream with the peer, which is connected, authenticated, non-blocking and empty;
  // the peer does the same. Null: it cannot. Errors: kOutOfMemory, kPeerLost, kSystem.
  Status (*over_stream)(const TransportConfig& config, const LinkRequest& link, LinkStream stream,
                        std::unique_ptr<Endpoint>* endpoint) = nullptr;
  // As link_memory, of such a link. Null where over_stream is.
  size_t (*over_stream_memory)(const TransportConfig& config) = nullptr;
  // Largest number of ports that a link may have with these settings. The memory of a link grows with them, and the
  // ranks' numbers must be equal where memory is limited. Null: a link has one.
  size_t (*most_ports)(const TransportSettings& settings) = nullptr;
  // Name of the setting that names them.
  const char* ports_setting = nullptr;
  // Whether its links can be Continuable (transport/continuable.h), so that those of another one go on over the stream.
  bool continuable = false;
};

// Transports to choose from, the preferred one first.
using TransportList = std::span<const TransportInfo* const>;

}  // namespace annulus
