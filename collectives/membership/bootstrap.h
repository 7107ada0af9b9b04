// Bootstrap: how the ranks of a job find each other. Rank 0 listens at the rendezvous, every other rank dials it; after
// the mutual proof of the job key each sends its blob, and when all have come rank 0 sends everyone the table of blobs.
// These connections stay open and become the control connections.
//
// Strangers, slow clients and broken messages are dropped, and logged once. When not everyone comes, every rank that
// did is told who is missing.
//
// Threads: a blocking function; may run in several threads for different jobs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/control/control_connections.h"

namespace annulus {

constexpr size_t kMostBlobBytes = 4096;
// How often give_up is asked, while nothing else happens.
constexpr Nanoseconds kGiveUpCheck = 50 * kMillisecond;

struct BootstrapConfig {
  int rank = 0;
  int nranks = 1;
  std::string rendezvous;  // "host:port" or "[v6]:port" of rank 0. Not used when nranks is 1.
  std::string job_key;     // Empty: insecure.
  std::string blob;        // What the other ranks should know of this one; at most kMostBlobBytes.
  Deadline deadline = kNoDeadline;
  std::function<Status()> give_up;  // If any, asked every now and then; a failure ends the call with that status.
};

struct BootstrapResult {
  std::vector<std::string> blobs;  // By rank.
  uint64_t job_id = 0;     // Random, the same on every rank: sets this communicator's links apart from those of others.
  std::string local_host;  // Own numeric address towards the rendezvous; "" when nranks is 1.
  ControlConnections connections;
};

// Blocks until every rank has come, at most until the deadline.
// Errors: kTimeout with the missing ranks; kMismatch when ranks disagree on nranks or two claim one rank; kAuth on a
// wrong key; kInvalidArgument on a rendezvous that cannot be; kSystem when rank 0 cannot listen; what give_up returned,
// on this rank or on rank 0.
Status Bootstrap(const BootstrapConfig& config, BootstrapResult* result);

}  // namespace annulus
