// LinkCosts: what a link costs, in the terms of Hockney's and LogP's models.
//
// Threads: plain values.
#pragma once

namespace annulus {

// One direction of a link, and the core that drives it. Both directions of a link work at the same time.
struct LinkCosts {
  double latency_s = 0;       // Time from when a message has left until the receiver acts on it.
  double byte_s = 0;          // Time per byte on the link.
  double message_s = 0;       // The core's time to receive one message and to send one.
  double reduce_byte_s = 0;   // The core's time per byte that it reduces.
  double move_byte_s = 0;     // The core's time per byte that it receives and sends.
  double ranks_per_core = 1;  // More than 1 where hosts are simulated; the core's work can then be the limit.
};

}  // namespace annulus
