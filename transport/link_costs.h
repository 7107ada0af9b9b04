// LinkCosts: what a link costs, in the terms of Hockney's and LogP's models.
//
// Threads: plain values.
#pragma once

namespace annulus {

// One direction of a link, and the core that drives it. Both directions of a link work at the same time.
struct LinkCosts {
  double latency_s = 0;       // From when a message has left until the receiver acts on it.
  double byte_s = 0;          // Per byte, on the link.
  double message_s = 0;       // The core's work for receiving a message and for sending one.
  double reduce_byte_s = 0;   // The core's work for a byte that it reduces.
  double move_byte_s = 0;     // The core's work for a byte that it receives and sends.
  double ranks_per_core = 1;  // More where hosts are simulated: then the core's work can be the limit.
};

}  // namespace annulus
