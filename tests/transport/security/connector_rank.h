// ConnectorRank: one rank of EstablishStreams, in a thread of its own where a test wants that. And strangers.
//
// Threads: the test's, and the one that Start makes.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "transport/security/connector.h"

namespace annulus {

constexpr Nanoseconds kPatience = 60 * kSecond;
constexpr char kConnectorKey[] = "the key of this test";

// One rank: its reactor, its listener and, once Run, its streams.
struct ConnectorRank {
  explicit ConnectorRank(uint32_t rank, uint32_t nranks = 2, const std::string& key = kConnectorKey) {
    plan.hello = {.purpose = kRendezvousPurpose, .identity = {.job = 9}, .nranks = nranks, .rank = rank};
    plan.key = key;
    plan.deadline = DeadlineAfter(kPatience);
  }
  ~ConnectorRank() { Join(); }

  StreamEndpoint ListenAt(const StreamEndpoint& endpoint) {
    EXPECT_TRUE(Listen(&reactor, endpoint, nullptr, &listener).ok());
    plan.listener = &listener;
    return listener.local_endpoint();
  }
  StreamEndpoint ListenOn(const std::string& host) {
    StreamEndpoint endpoint;
    EXPECT_TRUE(MakeEndpoint(host, 0, &endpoint).ok());
    return ListenAt(endpoint);
  }
  void Expect(uint32_t rank, uint16_t lane = 0) { plan.expected.push_back({rank, 0, lane}); }
  void Dial(uint32_t rank, const StreamEndpoint& endpoint, uint16_t lane = 0) {
    plan.dials.push_back({{rank, 0, lane}, {endpoint}});
  }
  void Connect() { status = EstablishStreams(&reactor, plan, &streams); }
  void Start() {
    thread = std::thread([this] { Connect(); });
  }
  void Join() {
    if (thread.joinable()) thread.join();
  }

  Reactor reactor;
  StreamListener listener{reactor.context()};
  ConnectPlan plan;
  Status status;
  std::vector<Stream> streams;
  std::thread thread;
};

// A client that does not keep to the rules.
class Stranger {
 public:
  explicit Stranger(const StreamEndpoint& to) : fd_(socket(to.data()->sa_family, SOCK_STREAM, 0)) {
    EXPECT_EQ(connect(fd_, to.data(), to.size()), 0) << strerror(errno);
  }
  ~Stranger() { close(fd_); }
  void Say(const std::string& text) {
    EXPECT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
  }
  // Waits until the other side closes.
  bool IsDropped() {
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    char byte;
    ssize_t got = 0;
    while ((got = recv(fd_, &byte, 1, 0)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
  }

 private:
  const int fd_;
};

}  // namespace annulus
