// A rank dies after it has joined, when the table of ranks is on its way to it: the others hear of it from their
// control plane, at once where the connection closes, within two seconds where it is reset.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "collectives/control/control.h"
#include "collectives/control/sockets/control_stream.h"
#include "collectives/membership/bootstrap_messages.h"
#include "tests/base/fastest_of.h"
#include "tests/collectives/membership/bootstrap_fixture.h"
#include "transport/security/connector.h"

namespace annulus {
namespace {

constexpr int kRanks = 3;
constexpr int kVictim = 2;

// A rank from its start to its verdict.
struct Survivor {
  Status status;
  std::mutex mutex;
  std::condition_variable changed;
  Nanoseconds told_at = 0;
  std::unique_ptr<Control> control;  // Last: its thread uses the rest.

  void Run(const BootstrapConfig& config) {
    BootstrapResult result;
    status = Bootstrap(config, &result);
    if (!status.ok()) return;
    ControlConfig own;
    own.rank = config.rank;
    own.nranks = config.nranks;
    own.job_key = config.job_key;
    own.identity.job = result.job_id;
    own.connections = std::move(result.connections);
    own.on_verdict = [this] {
      const std::lock_guard<std::mutex> lock(mutex);
      told_at = Now();
      changed.notify_all();
    };
    status = Control::Start(std::move(own), &control);
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_for(lock, std::chrono::nanoseconds(kPatience), [this] { return told_at != 0; });
  }
};

class BootstrapDeathTest : public BootstrapFixture {
 protected:
  // A start whose last rank joins and then ends: with the table unread, or read. Returns how much later all others
  // knew it.
  Nanoseconds Die(bool reads_table) {
    port_ = FreePort();
    std::vector<Survivor> survivors(kVictim);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kVictim; ++rank)
      threads.emplace_back([this, rank, &survivors] { survivors[rank].Run(Config(rank, kRanks)); });
    const Nanoseconds died_at = JoinAndEnd(reads_table);
    threads.clear();
    Nanoseconds last = 0;
    for (const Survivor& survivor : survivors) {
      EXPECT_TRUE(survivor.status.ok()) << survivor.status.ToString();
      if (!survivor.control || !survivor.control->has_verdict()) {
        ADD_FAILURE() << "no verdict";
        continue;
      }
      EXPECT_EQ(survivor.control->verdict(), survivors[0].control->verdict());
      EXPECT_EQ(survivor.control->verdict().code, Code::kPeerLost);
      EXPECT_EQ(survivor.control->verdict().rank, kVictim) << survivor.control->verdict().message;
      last = std::max(last, survivor.told_at);
    }
    for (Survivor& survivor : survivors) {
      if (survivor.control) survivor.control->Close();
    }
    std::printf("%s: all knew it after %.3f s\n", reads_table ? "closed" : "reset", (last - died_at) / 1e9);
    return last - died_at;
  }

 private:
  // Returns when the process ended, as far as its connection is concerned.
  Nanoseconds JoinAndEnd(bool reads_table) {
    Reactor reactor;
    ConnectPlan plan;
    plan.hello = RendezvousHello(Config(kVictim, kRanks));
    plan.key = kKey;
    plan.deadline = DeadlineAfter(kPatience);
    plan.dials.resize(1);
    EXPECT_TRUE(Resolve(Config(0, kRanks).rendezvous, plan.deadline, &plan.dials[0].endpoints).ok());
    std::vector<Stream> streams;
    EXPECT_TRUE(EstablishStreams(&reactor, plan, &streams).ok());
    const int fd = streams.at(0).socket.native_handle();
    const std::string join = *EncodeMessage(MessageType::kJoin, Encode(JoinMessage{kRanks, 1, kPatience, "", "blob"}));
    EXPECT_EQ(::send(fd, join.data(), join.size(), 0), static_cast<ssize_t>(join.size()));
    EXPECT_EQ(::fcntl(fd, F_SETFL, 0), 0);
    // The table comes in one piece: that it has begun to arrive is seen without reading it.
    std::string table(MostTableBytes(kRanks), 0);
    EXPECT_GT(::recv(fd, table.data(), 1, MSG_PEEK), 0);
    const ssize_t read = reads_table ? ::recv(fd, table.data(), table.size(), 0) : 0;
    EXPECT_EQ(read > static_cast<ssize_t>(kMessageHeaderBytes), reads_table);
    return Now();
  }
};

TEST_F(BootstrapDeathTest, IsKnownAtOnceWhereTheConnectionCloses) {
  EXPECT_LT(FastestOf(5, kSecond, [this] { return Die(true); }), kSecond);
}

TEST_F(BootstrapDeathTest, IsKnownSoonWhereItIsReset) {
  EXPECT_LT(FastestOf(5, 2 * kSecond, [this] { return Die(false); }), 2 * kSecond);
}

}  // namespace
}  // namespace annulus
