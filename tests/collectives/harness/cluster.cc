#include "tests/collectives/harness/cluster.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "base/check.h"

namespace annulus {

TestPort::TestPort(const std::string& host) : host_(host) {
  sockaddr_storage address{};
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&address);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&address);
  const bool is_v6 = inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1;
  if (!is_v6) ANNULUS_CHECK(inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1);
  address.ss_family = is_v6 ? AF_INET6 : AF_INET;
  fd_ = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(fd_, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  socklen_t length = is_v6 ? sizeof *v6 : sizeof *v4;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ANNULUS_CHECK(bind(fd_, generic, length) == 0);
  ANNULUS_CHECK(getsockname(fd_, generic, &length) == 0);
  port_ = ntohs(is_v6 ? v6->sin6_port : v4->sin_port);
}

TestPort::~TestPort() { close(fd_); }

UserConfig Cluster::Config(int rank) const {
  UserConfig config;
  config.rank = rank;
  config.size = config_.nranks;
  config.rendezvous = rendezvous_.c_str();
  config.job_key = "a key for tests, of enough characters";
  if (config_.hosts > 0) config.host_id = kHostIds[rank % config_.hosts];
  config.memory_bytes = config_.memory_bytes;
  config.timeout_ms = config_.timeout_ms;
  config.connect_timeout_ms = 60'000;
  config.Set("transport", config_.transport);
  config.Set("slice_bytes", config_.slice_bytes);
  config.Set("small_bytes", config_.small_bytes);
  config.Set("channels", config_.channels);
  config.Set("mesh_ranks", config_.mesh_ranks);
  config.Set("priorities", config_.priorities);
  config.Set("check_calls", config_.check_calls);
  config.Set("spin_us", config_.spin_us);
  config.Set("tcp_sockets", config_.tcp_sockets);
  config.Set("checksum", config_.checksum ? 1 : 0);
  config.Set("reconnect_ms", config_.reconnect_ms);
  config.Set("shm_stores", config_.shm_stores);
  config.Set("algorithm", config_.algorithm);
  config.Set("device_reduce", config_.device_reduce);
  if (config_.device_staged_bytes >= 0) config.Set("device_staged_bytes", config_.device_staged_bytes);
  if (config_.stream_fold_bytes >= 0) config.Set("stream_fold_bytes", config_.stream_fold_bytes);
  config.Set("stream_exchanges", config_.stream_exchanges ? 1 : 0);
  if (IsSliced(rank)) config.Set("device_staged_bytes", 0);
  if (!config_.trace.empty()) config.Set("trace", config_.trace);
  return config;
}

void Cluster::Run(const std::function<void(annulus_comm_t* comm, int rank)>& body) const {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < config_.nranks; ++rank) {
    threads.emplace_back([this, rank, &body] {
      const UserConfig config = Config(rank);
      annulus_comm_t* comm = nullptr;
      const annulus_status_t created = annulus_comm_create(&config, &comm);
      ASSERT_EQ(created, ANNULUS_OK) << "rank " << rank << ": " << LastMessage();
      body(comm, rank);
      EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

HostGrid GridOf(const ClusterConfig& config) {
  std::vector<int> host_of;
  for (int rank = 0; rank < config.nranks && config.hosts > 0; ++rank) host_of.push_back(rank % config.hosts);
  return HostGrid(host_of);
}

std::string LastMessage(const annulus_comm_t* comm) {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  EXPECT_EQ(annulus_comm_verdict(comm, &error), ANNULUS_OK);
  return error.status == ANNULUS_OK ? LastMessage() : error.message;
}

}  // namespace annulus
