// ShmBell: a sleeper and a ringer never miss each other, however their steps interleave.
#include "transport/shm/shm_bell.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "base/clock.h"
#include "tests/soak/rounds.h"
#include "transport/reactor.h"

namespace annulus {
namespace {

class ShmBellTest : public ::testing::Test {
 protected:
  static StreamSocket SocketOf(Reactor& reactor, int fd) {
    StreamSocket socket(reactor.context());
    asio::error_code error;
    socket.assign(StreamProtocol(AF_UNIX, 0), fd, error);
    EXPECT_FALSE(error) << error.message();
    return socket;
  }
  static std::array<int, 2> Sockets() {
    std::array<int, 2> fds;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()), 0);
    return fds;
  }

  Reactor reactors_[2];
  ShmEnd ends_[2] = {};
  const std::array<int, 2> fds_ = Sockets();
  ShmPeerRegions regions_[2];
  ShmBell bells_[2] = {ShmBell(SocketOf(reactors_[0], fds_[0]), &ends_[0], &ends_[1]),
                       ShmBell(SocketOf(reactors_[1], fds_[1]), &ends_[1], &ends_[0])};
};

TEST_F(ShmBellTest, ABellWakesTheReactorOnce) {
  bells_[1].RingIfAsleep();
  bells_[0].Sleep();
  bells_[0].Wait();
  bells_[1].RingIfAsleep();
  bells_[1].RingIfAsleep();
  reactors_[0].WaitUntil(DeadlineAfter(60 * kSecond));
  EXPECT_TRUE(bells_[0].rung());
  char bells[8];
  EXPECT_EQ(recv(fds_[0], bells, sizeof(bells), MSG_PEEK), 1) << "one bell per sleep, none for the wakeful";
  EXPECT_TRUE(bells_[0].Drain(&regions_[0]));
  EXPECT_FALSE(bells_[0].rung());
}

TEST_F(ShmBellTest, APeerThatShutIsGoneOnceItsBellsAreTaken) {
  bells_[0].Sleep();
  bells_[1].RingIfAsleep();
  bells_[1].Shut();
  EXPECT_TRUE(bells_[0].Drain(&regions_[0]));
  EXPECT_FALSE(bells_[0].Drain(&regions_[0]));
  bells_[0].RingIfAsleep();  // Harmless.
}

// Both sides meet before each round, so that their two steps each come as close together as they can.
class Meeting {
 public:
  void Arrive(int side, uint64_t round) {
    arrived_[side].value.store(round, std::memory_order_release);
    for (int spins = 0; arrived_[1 - side].value.load(std::memory_order_acquire) < round; ++spins) {
      if (spins > 1000) sched_yield();
    }
  }

 private:
  ShmCounter arrived_[2] = {};
};

// Without the fences this finds a missed wake-up within some thousand rounds.
TEST_F(ShmBellTest, EitherTheSleeperSeesTheNewsOrTheRingerSeesTheSleeper) {
  const uint64_t rounds = Rounds(200'000, 20'000'000);
  const Deadline end = DeadlineAfter(static_cast<Nanoseconds>(Rounds(1, 100)) * kSecond);
  Meeting before;
  Meeting after;
  ShmCounter news = {};
  ShmCounter last = {};  // The last round, once the sleeper has chosen it.
  last.value = rounds;
  std::thread ringer([&] {
    for (uint64_t round = 1; round <= last.value.load(); ++round) {
      before.Arrive(0, round);
      news.value.store(round, std::memory_order_release);
      bells_[0].RingIfAsleep();
      after.Arrive(0, round);
      bells_[1].Drain(&regions_[1]);
    }
  });
  uint64_t missed = 0;
  for (uint64_t round = 1; round <= last.value.load(); ++round) {
    if (Now() > end) last.value = std::min(rounds, round);
    before.Arrive(1, round);
    bells_[1].Sleep();
    const bool seen = news.value.load(std::memory_order_acquire) == round;
    after.Arrive(1, round);
    if (!seen && ends_[1].asleep.load() != 0) ++missed;
    bells_[1].Wake();
  }
  ringer.join();
  EXPECT_EQ(missed, 0u);
}

}  // namespace
}  // namespace annulus
