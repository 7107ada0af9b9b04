// Cluster: several ranks as threads of one process, each with communicators of its own through the C API.
//
// Threads: the functions given to Run are called on one thread per rank.
#pragma once

#include <annulus.h>

#include <functional>
#include <string>

#include "base/parse.h"
#include "collectives/core/host_grid.h"
#include "tests/collectives/harness/calls.h"
#include "tests/collectives/harness/user_config.h"
#include "tests/collectives/harness/user_memory.h"

namespace annulus {

// A loopback port that nobody else gets: bound, never listening, while this lives. Rank 0 listens on it beside us.
class TestPort {
 public:
  explicit TestPort(const std::string& host = "127.0.0.1");
  ~TestPort();
  TestPort(const TestPort&) = delete;
  TestPort& operator=(const TestPort&) = delete;
  std::string address() const { return FormatAddress(host_, port_); }
  int port() const { return port_; }

 private:
  const std::string host_;
  int fd_ = -1;
  int port_ = 0;
};

struct ClusterConfig {
  int nranks = 2;
  std::string transport = "auto";
  int64_t slice_bytes = 0;
  int64_t small_bytes = 16384;
  int channels = 1;
  int mesh_ranks = 0;
  int priorities = 0;
  int check_calls = 0;
  int64_t spin_us = -1;
  int tcp_sockets = 0;
  bool checksum = false;
  int reconnect_ms = -1;  // As the library has it.
  int hosts = 0;          // If any, ranks are dealt out to so many pretended hosts, in turn.
  int64_t memory_bytes = 0;
  std::string trace;
  const char* shm_stores = "auto";
  std::string algorithm = "auto";
  std::string device_reduce = "auto";
  int64_t device_staged_bytes = -1;  // As the library has it.
  int64_t stream_fold_bytes = -1;    // As the library has it.
  bool stream_exchanges = false;
  int64_t timeout_ms = 60'000;
  // As in UserMemory. "cuda_odd": as "cuda", for ranks of odd numbers only. "..._sliced": small calls are not staged as
  // a whole; "cuda_some_sliced": not by ranks of odd numbers.
  std::string memory = "host";
};

// How the ranks lie on the pretended hosts.
HostGrid GridOf(const ClusterConfig& config);

// The message of the verdict or, while there is none, of this thread's latest failure.
std::string LastMessage(const annulus_comm_t* comm);

class Cluster {
 public:
  explicit Cluster(const ClusterConfig& config) : config_(config), memory_(config.memory) {}

  // Where the test puts the buffers of calls.
  const UserMemory& memory() const { return memory_; }
  const UserMemory& memory(int rank) const { return config_.memory == "cuda_odd" && rank % 2 == 0 ? host_ : memory_; }

  // Whether the test's memory has that rank work slice by slice.
  bool IsSliced(int rank) const {
    return config_.memory.ends_with("_sliced") && (!config_.memory.ends_with("_some_sliced") || rank % 2 == 1);
  }
  // Settings of one rank; valid while the cluster lives.
  UserConfig Config(int rank) const;

  // Calls `body` once per rank, each on its own thread, with a fresh communicator that is destroyed afterwards. A
  // communicator that cannot be made is a test failure.
  void Run(const std::function<void(annulus_comm_t* comm, int rank)>& body) const;

 private:
  ClusterConfig config_;
  UserMemory memory_;
  UserMemory host_{"host"};
  static constexpr const char* kHostIds[] = {"host a", "host b", "host c"};
  TestPort port_;
  std::string rendezvous_ = port_.address();
};

}  // namespace annulus
