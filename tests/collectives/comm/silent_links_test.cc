// Links over TCP fall silent between two calls, as when something on the way has forgotten their connections. A rank
// then loses what another one has sent it, and that one goes on to a call that does not use the link. It sends it again
// all the same, from within that call.

#include <annulus.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/collectives/comm/message_calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/transport/tcp/silence.h"
#include "tests/transport/tcp/socket_cutter.h"

namespace annulus {
namespace {

// Links are back after a second or so; what nobody sends again ends its call by this.
constexpr int64_t kTimeoutMs = 40'000;

class SilentLinksTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    network_ = SocketCutter::Create(&why);  // Where this process may set filters.
    if (network_ == nullptr) GTEST_SKIP() << why;
  }

  // What a rank does.
  using Body = std::function<void(annulus_comm_t* comm, int rank)>;

  // The ranks do it over links that work, and again over links that have fallen silent.
  static void Run(int nranks, const std::string& algorithm, const Body& body) {
    ClusterConfig config;
    config.nranks = nranks;
    config.algorithm = algorithm;
    config.transport = "tcp";
    config.reconnect_ms = 60'000;
    config.timeout_ms = kTimeoutMs;
    const Cluster cluster(config);
    const std::string rendezvous = cluster.Config(0).rendezvous;
    const int control_port = std::stoi(rendezvous.substr(rendezvous.rfind(':') + 1));
    std::barrier<> gate(config.nranks);
    cluster.Run([&](annulus_comm_t* comm, int rank) {
      body(comm, rank);
      gate.arrive_and_wait();
      if (rank == 0) {
        const std::vector<int> links = LinkSockets(control_port);
        EXPECT_EQ(Silence(links), links.size());
      }
      gate.arrive_and_wait();
      body(comm, rank);
    });
  }

  static void ExpectSum(annulus_comm_t* comm, int nranks, size_t count) {
    const std::vector<int> input(count, 3);
    std::vector<int> output(count);
    EXPECT_EQ(annulus_allreduce(comm, input.data(), output.data(), count, ANNULUS_INT32, ANNULUS_SUM), ANNULUS_OK)
        << LastMessage(comm);
    EXPECT_EQ(output, std::vector<int>(count, 3 * nranks));
  }

  static constexpr size_t kFew = 256;          // Fit into one slice, which is copied when it is sent.
  static constexpr size_t kMany = 256 * 1024;  // Go round the ring.

 private:
  static int PortOf(const sockaddr_storage& address) {
    return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                               : reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  // All but those of control.
  static std::vector<int> LinkSockets(int control_port) {
    std::vector<int> links;
    for (const int fd : Connected()) {
      sockaddr_storage own{}, peer{};
      socklen_t own_bytes = sizeof own, peer_bytes = sizeof peer;
      EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes), 0);
      EXPECT_EQ(getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes), 0);
      if (PortOf(own) != control_port && PortOf(peer) != control_port) links.push_back(fd);
    }
    EXPECT_FALSE(links.empty());
    return links;
  }

  std::unique_ptr<SocketCutter> network_;
};

// The root has sent at once, and waits in the next call for the neighbour of a rank that waits for the root. It has
// dialled one of the two links to ranks that are no neighbours of its own, or none.
TEST_F(SilentLinksTest, ARootThatHasGoneOnToARing) {
  for (const int root : {0, 3}) {
    Run(4, "auto", [root](annulus_comm_t* comm, int rank) {
      const std::vector<int> sent = Values(kFew, root);
      std::vector<int> got(kFew);
      EXPECT_EQ(annulus_broadcast(comm, rank == root ? sent.data() : nullptr, got.data(), kFew, ANNULUS_INT32, root),
                ANNULUS_OK)
          << LastMessage(comm);
      EXPECT_EQ(got, sent);
      ExpectSum(comm, 4, kMany);
    });
  }
}

TEST_F(SilentLinksTest, ASenderThatHasGoneOnToACollective) {
  for (const int sender : {0, 1}) {
    Run(2, "auto", [sender](annulus_comm_t* comm, int rank) {
      const std::vector<int> sent = Values(kFew, sender);
      std::vector<int> got(kFew);
      EXPECT_EQ(rank == sender ? Send(comm, sent, 1 - sender) : Receive(comm, &got, sender), ANNULUS_OK)
          << LastMessage(comm);
      EXPECT_EQ(got, rank == sender ? std::vector<int>(kFew) : sent);
      ExpectSum(comm, 2, kMany);
    });
  }
}

// Each polls only the link of its step.
TEST_F(SilentLinksTest, StepsThatWaitForEachOther) {
  Run(5, "log_steps", [](annulus_comm_t* comm, int) { ExpectSum(comm, 5, kFew); });
}

}  // namespace
}  // namespace annulus
