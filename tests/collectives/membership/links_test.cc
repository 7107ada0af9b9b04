// Which links a communicator makes, as its log and its users see them: one line per link, and IPv6 like IPv4.

#include <annulus.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/harness/cluster.h"

namespace annulus {
namespace {

// What two ranks log while their communicators are made.
std::string LogOf(const std::string& transport, const std::string& rendezvous) {
  testing::internal::CaptureStderr();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      UserConfig config;
      config.rank = rank;
      config.size = 2;
      config.rendezvous = rendezvous.c_str();
      config.job_key = "a key for tests, of enough characters";
      config.Set("transport", transport);
      config.Set("log_level", "info");
      annulus_comm_t* comm = nullptr;
      ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
      float value = 1;
      EXPECT_EQ(annulus_allreduce(comm, &value, &value, 1, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
      EXPECT_EQ(value, 2);
      annulus_comm_t* child = nullptr;
      EXPECT_EQ(annulus_comm_dup(comm, &child), ANNULUS_OK) << LastMessage();
      annulus_comm_destroy(child);
      annulus_comm_destroy(comm);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return testing::internal::GetCapturedStderr();
}

// Whether some line holds all of these words, in this order.
bool HasLine(const std::string& log, const std::vector<std::string>& words) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    size_t from = 0;
    for (const std::string& word : words) {
      if (from != std::string::npos) from = line.find(word, from);
    }
    if (from != std::string::npos) return true;
  }
  return false;
}

TEST(LinksTest, SharedMemoryIsChosenOnOneHostAndTheLogSaysWhy) {
  const std::string log = LogOf("auto", TestPort().address());
  EXPECT_TRUE(HasLine(log, {"link to rank 1, on the same host: shm: shared memory from rank 0"})) << log;
}

TEST(LinksTest, TcpLinksAreLoggedWithInterfaceAndAddresses) {
  const std::string log = LogOf("tcp", TestPort().address());
  EXPECT_TRUE(HasLine(log, {"link to rank 1, on the same host: tcp, set by ANNULUS_TRANSPORT: ", " lo", "127.0.0.1:"}))
      << log;
}

// The cause is on rank 1 alone; rank 0 is told too.
TEST(LinksTest, WrongInterfaceOnOneHostIsNamedToAll) {
  const TestPort port;
  std::vector<std::string> messages(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      UserConfig config;
      const std::string rendezvous = port.address();
      config.rank = rank;
      config.size = 2;
      config.rendezvous = rendezvous.c_str();
      config.job_key = "a key for tests, of enough characters";
      config.host_id = rank == 0 ? "one" : "another";
      if (rank == 1) config.Set("interface_name", "nosuch0");
      annulus_comm_t* comm = nullptr;
      EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_UNSUPPORTED);
      messages[rank] = LastMessage();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& message : messages) {
    EXPECT_NE(message.find("tcp is not usable at rank 1: there is no network interface \"nosuch0\""), std::string::npos)
        << message;
  }
}

TEST(LinksTest, CommunicatorsAndTheirChildrenMeetOverIpv6) {
  const TestPort port("::1");
  const std::string log = LogOf("tcp", port.address());
  EXPECT_TRUE(HasLine(log, {"link to rank 0", "tcp", "[::1]:"})) << log;
}

}  // namespace
}  // namespace annulus
