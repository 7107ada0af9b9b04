// Pairs of shared memory endpoints in one process, and processes that end on command, for the tests of transport/shm.
//
// Threads: as the endpoints; the ends of a ShmPair may be driven by a thread each.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/local/stream_protocol.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/contract/contract_link.h"
#include "tests/transport/contract/contract_traffic.h"
#include "transport/reactor.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/shm/shm_mapping.h"

namespace annulus {

// Two ends that share one mapping, so that a thread sanitizer sees that what one end does orders what the other does,
// and so that a test can write into the shared memory.
class ShmPair final : public ContractLink {
 public:
  static std::unique_ptr<ContractLink> Open(const LinkOptions& options) {
    auto pair = std::make_unique<ShmPair>();
    return pair->Make(options) ? std::move(pair) : nullptr;
  }

  // `copies`, by side; null: auto.
  bool Make(const LinkOptions& options, SlotStores stores = SlotStores::kAuto, const KernelCopies* copies = nullptr) {
    return Make(options, {.stores = stores, .copies = copies});
  }
  // `devices`: of both ends; null: none. `reads`, by side; null: auto.
  bool Make(const LinkOptions& options, SlotMemory* devices, const DeviceReads* reads) {
    return Make(options, {.devices = devices, .reads = reads});
  }

 private:
  struct Settings {
    SlotStores stores = SlotStores::kAuto;
    const KernelCopies* copies = nullptr;
    SlotMemory* devices = nullptr;
    const DeviceReads* reads = nullptr;
  };
  bool Make(const LinkOptions& options, const Settings& settings) {
    std::unique_ptr<ShmMapping> mapping;
    const Status status = ShmMapping::Create(options.slots, options.slot_bytes, &mapping);
    EXPECT_TRUE(status.ok()) << status.ToString();
    int fds[2];
    if (!status.ok() || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) return false;
    mapping_ = std::move(mapping);
    if (settings.devices != nullptr) {
      EXPECT_TRUE(mapping_->RegisterSlots(settings.devices).ok());
    }
    for (int side = 0; side < 2; ++side) {
      StreamSocket socket(reactors_[side].context());
      asio::error_code error;
      socket.assign(StreamProtocol(AF_UNIX, 0), fds[side], error);
      EXPECT_FALSE(error) << error.message();
      endpoints_[side] =
          std::make_unique<ShmEndpoint>(mapping_, side, 1 - side, std::move(socket), settings.stores, &TestRegistry(),
                                        settings.copies != nullptr ? settings.copies[side] : KernelCopies::kAuto,
                                        settings.reads != nullptr ? settings.reads[side] : DeviceReads::kAuto);
    }
    return true;
  }

 public:
  Endpoint& end(int side) override { return *endpoints_[side]; }
  void Sever(int side) override { endpoints_[side].reset(); }
  void Pass() override { sched_yield(); }
  // Gives an end away, which needs the pair's reactor.
  std::unique_ptr<Endpoint> Take(int side) { return std::move(endpoints_[side]); }
  Reactor* reactor(int side) override { return &reactors_[side]; }
  ShmMapping& mapping() { return *mapping_; }

 private:
  Reactor reactors_[2];
  std::shared_ptr<ShmMapping> mapping_;
  std::unique_ptr<ShmEndpoint> endpoints_[2];
};

// Makes and connects one rank's end of a link between rank 0 and rank 1. `exchange` gives the peer this rank's address
// and returns the peer's.
inline Status ConnectOne(TransportConfig config, const std::string& key,
                         const std::function<std::unique_ptr<Transport>(const TransportConfig&)>& create,
                         const std::function<std::string(const std::string&)>& exchange, Deadline deadline,
                         std::unique_ptr<Endpoint>* endpoint) {
  config.nranks = 2;
  config.job_key = key;
  config.memory = &TestRegistry();
  const std::unique_ptr<Transport> transport = create(config);
  std::string address;
  ANNULUS_RETURN_IF_ERROR(transport->LocalAddress(&address));
  LinkRequest link;
  link.peer = 1 - config.rank;
  link.same_host = true;
  link.address = exchange(address);
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  ConnectContext context;
  context.identity.job = 99;
  context.deadline = deadline;
  ANNULUS_RETURN_IF_ERROR(transport->Connect({&link, 1}, context, &endpoints));
  *endpoint = std::move(endpoints.at(0));
  return Status();
}

// A forked process with a channel to it. Killed and reaped at the end of its scope.
class ForkedChild {
 public:
  // `body` gets the channel's other end; its result is the exit status.
  explicit ForkedChild(const std::function<int(int channel)>& body) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(fds[0]);
      _exit(body(fds[1]));
    }
    close(fds[1]);
    channel_ = fds[0];
  }
  ForkedChild(const ForkedChild&) = delete;
  ~ForkedChild() {
    Kill();
    Wait(DeadlineAfter(kContractPatience));
    close(channel_);
  }

  pid_t pid() const { return pid_; }
  int channel() const { return channel_; }
  void Kill() const {
    if (!reaped_) kill(pid_, SIGKILL);
  }

  // The exit status, -1 when it did not end by exit in time.
  int Wait(Deadline deadline) {
    if (reaped_) return -1;
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    pollfd ended{pidfd, POLLIN, 0};
    while (poll(&ended, 1, 100) == 0 && Now() < deadline) continue;
    close(pidfd);
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return -1;
    reaped_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int channel_ = -1;
  bool reaped_ = false;
};

// One message over a ForkedChild's channel, either way. "" when none came within the patience.
inline std::string Swap(int channel, const std::string& message) {
  if (send(channel, message.data(), message.size(), MSG_NOSIGNAL) < 0) return "";
  pollfd readable{channel, POLLIN, 0};
  if (poll(&readable, 1, static_cast<int>(kContractPatience / kMillisecond)) != 1) return "";
  char text[512];
  const ssize_t received = recv(channel, text, sizeof(text), 0);
  return received > 0 ? std::string(text, static_cast<size_t>(received)) : "";
}

}  // namespace annulus
