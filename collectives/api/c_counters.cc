// The C API: counters.

#include <algorithm>
#include <string>

#include "collectives/annulus.h"
#include "collectives/api/c_api.h"
#include "collectives/api/structs.h"

namespace {

using annulus::Communicator;
using annulus::PeerTotals;
using annulus::Status;
using annulus::Totals;
using annulus::TransportList;
using annulus::TransportTotals;
using annulus::c_api::FillStruct;
using annulus::c_api::Guarded;
using annulus::c_api::Outcome;
using annulus::c_api::Reject;
using annulus::c_api::Unwrap;

annulus_status_t CheckPointers(const void* comm, const void* counters) {
  if (comm == nullptr) return Reject("comm is null");
  if (counters == nullptr) return Reject("counters is null");
  return ANNULUS_OK;
}

void AddPeer(int peer, const PeerTotals& totals, annulus_counters_t* sum) {
  if (totals.waited_ns > sum->slowest_peer_ns) {
    sum->slowest_peer_ns = totals.waited_ns;
    sum->slowest_peer = peer;
  }
}

}  // namespace

annulus_status_t annulus_comm_counters(const annulus_comm_t* comm, annulus_counters_t* counters) {
  if (const annulus_status_t status = CheckPointers(comm, counters); status != ANNULUS_OK) return status;
  return Guarded([&] {
    const Communicator& communicator = *Unwrap(comm);
    const Totals totals = communicator.ReadTotals();
    annulus_counters_t full{};
    full.collectives = totals.collectives;
    full.collectives_failed = totals.collectives_failed;
    full.messages = totals.messages;
    full.messages_failed = totals.messages_failed;
    full.data_bytes = totals.data_bytes;
    full.driven_ns = totals.driven_ns;
    full.waited_ns = totals.waited_ns;
    full.sleeps = totals.sleeps;
    full.slowest_peer = -1;
    for (int peer = 0; peer < communicator.nranks(); ++peer) AddPeer(peer, communicator.ReadPeer(peer), &full);
    full.slowest_peer_ns = std::min(full.slowest_peer_ns, full.waited_ns);
    return Outcome(FillStruct(full, "annulus_counters_t", counters));
  });
}

annulus_status_t annulus_comm_peer_counters(const annulus_comm_t* comm, int peer, annulus_peer_counters_t* counters) {
  if (const annulus_status_t status = CheckPointers(comm, counters); status != ANNULUS_OK) return status;
  return Guarded([&] {
    const Communicator& communicator = *Unwrap(comm);
    if (peer < 0 || peer >= communicator.nranks() || peer == communicator.rank()) {
      return Reject(Status::Invalid("peer is " + std::to_string(peer) + "; allowed: 0 to " +
                                    std::to_string(communicator.nranks() - 1) + ", and not this rank itself"));
    }
    const PeerTotals totals = communicator.ReadPeer(peer);
    annulus_peer_counters_t full{};
    full.transport = totals.transport;
    full.sent_bytes = totals.sent_bytes;
    full.received_bytes = totals.received_bytes;
    full.retransmits = communicator.Retransmits(peer);
    full.waited_ns = totals.waited_ns;
    return Outcome(FillStruct(full, "annulus_peer_counters_t", counters));
  });
}

annulus_status_t annulus_comm_transport_counters(const annulus_comm_t* comm, int index,
                                                 annulus_transport_counters_t* counters) {
  if (const annulus_status_t status = CheckPointers(comm, counters); status != ANNULUS_OK) return status;
  return Guarded([&] {
    if (index < 0) return Reject(Status::Invalid("index is " + std::to_string(index) + "; it begins at 0"));
    const Communicator& communicator = *Unwrap(comm);
    const TransportList transports = communicator.transports();
    annulus_transport_counters_t full{};
    full.transport = "";
    if (static_cast<size_t>(index) < transports.size()) {
      const TransportTotals totals = communicator.ReadTransport(*transports[index]);
      full.transport = transports[index]->name;
      full.sent_bytes = totals.sent_bytes;
      full.received_bytes = totals.received_bytes;
      full.retransmits = totals.retransmits;
      full.reconnects = totals.reconnects;
      full.bytes_sent_again = totals.bytes_sent_again;
      full.read_bytes = totals.read_bytes;
      full.landed_bytes = totals.landed_bytes;
    }
    return Outcome(FillStruct(full, "annulus_transport_counters_t", counters));
  });
}
