// A rendezvous over loopback whose ranks are threads.
//
// Threads: one; Run starts one for each rank.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "collectives/membership/bootstrap.h"

namespace annulus {

inline constexpr char kKey[] = "a key that is long enough";
inline constexpr Nanoseconds kPatience = 60 * kSecond;  // Only a failing test waits that long.

struct BootstrapOutcome {
  Status status;
  BootstrapResult result;
  Nanoseconds took = 0;
};

class BootstrapFixture : public testing::Test {
 protected:
  BootstrapConfig Config(int rank, int nranks, Nanoseconds patience = kPatience) const {
    BootstrapConfig config;
    config.rank = rank;
    config.nranks = nranks;
    config.rendezvous = host_ + ":" + std::to_string(port_);
    config.job_key = kKey;
    config.blob = "blob of rank " + std::to_string(rank);
    config.deadline = DeadlineAfter(patience);
    return config;
  }

  // Runs all `configs` at once, each in a thread.
  static std::vector<BootstrapOutcome> Run(const std::vector<BootstrapConfig>& configs) {
    std::vector<BootstrapOutcome> outcomes(configs.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < configs.size(); ++i) {
      threads.emplace_back([&outcomes, &configs, i] {
        const Nanoseconds start = Now();
        outcomes[i].status = Bootstrap(configs[i], &outcomes[i].result);
        outcomes[i].took = Now() - start;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  std::vector<BootstrapConfig> All(int nranks) const {
    std::vector<BootstrapConfig> configs;
    for (int rank = 0; rank < nranks; ++rank) configs.push_back(Config(rank, nranks));
    return configs;
  }

  static void ExpectTable(const std::vector<BootstrapOutcome>& outcomes) {
    for (const BootstrapOutcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
      EXPECT_EQ(outcome.result.job_id, outcomes[0].result.job_id);
      ASSERT_EQ(outcome.result.blobs.size(), outcomes.size());
      for (size_t r = 0; r < outcomes.size(); ++r)
        EXPECT_EQ(outcome.result.blobs[r], "blob of rank " + std::to_string(r));
    }
  }

  static void ExpectOneFailure(std::span<const BootstrapOutcome> outcomes, Code code, const std::string& text) {
    for (const BootstrapOutcome& outcome : outcomes) {
      EXPECT_EQ(outcome.status.code(), code) << outcome.status.ToString();
      EXPECT_NE(outcome.status.message().find(text), std::string::npos) << outcome.status.ToString();
    }
  }

  // A raw connection to the rendezvous, once it listens.
  int Dial() const {
    const Deadline limit = DeadlineAfter(kPatience);
    while (Now() < limit) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port_));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
      ::close(fd);
      std::this_thread::yield();
    }
    ADD_FAILURE() << "nobody listens";
    return -1;
  }

  static int FreePort() {
    const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    socklen_t bytes = sizeof address;
    ANNULUS_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
    ANNULUS_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
    ::close(fd);
    return ntohs(address.sin6_port);
  }

  std::string host_ = "127.0.0.1";
  int port_ = FreePort();
};

}  // namespace annulus
