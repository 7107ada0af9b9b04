// Bootstrap: how the ranks of a job find each other. Rank 0 listens at the rendezvous and every other rank connects to
// it. After mutual proof of the job key, each rank sends its blob. When all ranks have joined, rank 0 sends everyone
// the table of blobs. These connections stay open and become the control connections.
//
// Strangers, slow clients and broken messages are dropped, and logged once. If some ranks do not join, every rank that
// did is told which ones are missing.
//
// Threads: a blocking function; may run in several threads for different jobs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/identity.h"
#include "base/library.h"
#include "base/secret.h"
#include "base/status.h"
#include "collectives/control/control_connections.h"

namespace annulus {

constexpr size_t kMostBlobBytes = 4096;
// Interval at which give_up is called while nothing else happens.
constexpr Nanoseconds kGiveUpCheck = 50 * kMillisecond;

struct BootstrapConfig {
  int rank = 0;
  int nranks = 1;
  std::string rendezvous;  // "host:port" or "[v6]:port" of rank 0. Not used when nranks is 1.
  Secret job_key;          // Empty: insecure.
  bool encrypts = false;   // Needs a key.
  // The run of all ranks; for a split, also the parent's job and a number of its own.
  Identity identity;
  Library library = ThisLibrary();
  // A socket that listens at the rendezvous already, for rank 0; it stays the caller's. -1: none. One that listens
  // elsewhere is not used.
  int listener = -1;
  std::string blob;  // Data about this rank for the other ranks; at most kMostBlobBytes.
  Deadline deadline = kNoDeadline;
  std::function<Status()> give_up;  // If set, called regularly; a failure ends the call with that status.
  // If set, called once on each rank other than 0, when it has the table: rank 0 has not returned yet.
  std::function<void()> met;
};

struct BootstrapResult {
  std::vector<std::string> blobs;  // By rank.
  uint64_t job_id = 0;     // Random, the same on every rank: tells this communicator's links from those of others.
  std::string local_host;  // Own numeric address towards the rendezvous; "" when nranks is 1.
  ControlConnections connections;
};

// Blocks until every rank has joined, at most until the deadline.
// Errors: kTimeout with the missing ranks; kMismatch when ranks disagree on nranks, two claim one rank, libraries do
// not fit together or rank 0 belongs to another run; kAuth on a wrong key; kInvalidArgument on an invalid rendezvous or
// more than JobPlace::kMostRanks; kSystem when rank 0 cannot listen; the status of give_up, on this rank or on rank 0.
// Lets the std::system_error through that asio throws where it finds no descriptors for itself.
Status Bootstrap(const BootstrapConfig& config, BootstrapResult* result);

}  // namespace annulus
