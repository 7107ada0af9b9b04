// Links that cannot go on over TCP after all: there is no second link, the peer breaks the rules or leaves, its host
// does not answer, or the device does not stop. Each ends once, with an error that names the culprit.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/contract/contract_link.h"
#include "tests/transport/resume/resuming_transport.h"
#include "tests/transport/tcp/silence.h"
#include "tests/transport/tcp/socket_cutter.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/continuable.h"
#include "transport/verbs/rail/verbs_format.h"

namespace annulus {
namespace {

constexpr int kReconnectMs = 20'000;

// Bytes that have arrived at connected sockets of this process.
int Unread() {
  int all = 0;
  for (const int fd : Connected()) {
    int bytes = 0;
    if (ioctl(fd, FIONREAD, &bytes) == 0) all += bytes;
  }
  return all;
}

// Writes to all connected sockets of this process.
void WriteToAll(const std::byte* data, size_t bytes) {
  for (const int fd : Connected()) ASSERT_EQ(write(fd, data, bytes), static_cast<ssize_t>(bytes));
}

class ResumeFailureTest : public ::testing::Test {
 protected:
  ~ResumeFailureTest() override {
    SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
    SimulatedVerbs::SetMachine({});
    link_.reset();
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }

  void Open(ResumingTransport::OverStream over_stream = TcpOverStream, int reconnect_ms = kReconnectMs) {
    const auto make = [=](TransportConfig config) {
      return std::make_unique<ResumingTransport>(std::move(config), reconnect_ms, nullptr, over_stream);
    };
    link_ = TransportLink::Open(make, nullptr, {.slot_bytes = 4096, .slots = 4});
    ASSERT_NE(link_, nullptr);
  }
  Endpoint& end(int side) { return link_->end(side); }

  // Drives one end, which sleeps where it may, until it ends.
  Status AwaitEnd(int side) {
    Status status;
    for (const Deadline give_up = DeadlineAfter(kContractPatience); status.ok() && Now() < give_up;) {
      bool moved = false;
      status = end(side).Progress(&moved);
      if (status.ok() && end(side).Arm()) link_->reactor(side)->WaitUntil(DeadlineAfter(10 * kMillisecond));
    }
    return status;
  }
  void PostOne(Send* send) {
    std::byte* slot = nullptr;
    ASSERT_TRUE(end(1).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
    send->data = slot;
    send->bytes = send->ready = 1000;
    ASSERT_TRUE(end(1).PostSend(send).ok());
  }
  // Sends one slice from side 1. The peer's device has it then, but its process does not.
  void SendOne(Send* send) {
    PostOne(send);
    bool moved = false;
    for (const Deadline give_up = DeadlineAfter(kContractPatience); send->code != Code::kOk && Now() < give_up;) {
      ASSERT_TRUE(end(1).Progress(&moved).ok());
    }
    ASSERT_EQ(send->code, Code::kOk);
  }
  // Lets side 1 say that its device has stopped.
  void StopFirst() {
    for (const Deadline give_up = DeadlineAfter(kContractPatience); Unread() == 0 && Now() < give_up;) {
      bool moved = false;
      ASSERT_TRUE(end(1).Progress(&moved).ok());
    }
  }
  // Drives both ends until they have gone on over TCP. Returns whether they have.
  bool BothGoOn() {
    const auto goes_on = [this](int side) { return end(side).stats().reconnects > 0; };
    for (const Deadline give_up = DeadlineAfter(kContractPatience); !(goes_on(0) && goes_on(1)) && Now() < give_up;) {
      bool moved = false;
      for (const int side : {0, 1}) {
        if (!end(side).Progress(&moved).ok()) return false;
      }
    }
    return goes_on(0) && goes_on(1);
  }
  void AwaitClose(int side) {
    const Deadline give_up = DeadlineAfter(kContractPatience);
    while (!end(side).Close() && Now() < give_up) sched_yield();
    EXPECT_TRUE(end(side).Close());
  }

  std::unique_ptr<ContractLink> link_;
};

// What has arrived is delivered first, and nobody spins meanwhile.
TEST_F(ResumeFailureTest, WithoutASecondLinkTheErrorIsTheLinks) {
  int calls = 0;
  Open([&calls](const TransportConfig& config, const LinkRequest&, const LinkStream&, std::unique_ptr<Endpoint>*) {
    if (config.rank == 0) ++calls;
    return Status(Code::kOutOfMemory, "no memory, says the test");
  });
  Send sends[2];
  for (Send& send : sends) SendOne(&send);
  SimulatedVerbs::FailPairs();
  Status other;
  bool moved = false;
  for (const Deadline give_up = DeadlineAfter(kContractPatience); (calls == 0 || other.ok()) && Now() < give_up;) {
    ASSERT_TRUE(end(0).Progress(&moved).ok());
    if (other.ok()) other = end(1).Progress(&moved);
  }
  EXPECT_EQ(other.code(), Code::kOutOfMemory);
  for (int i = 0; i < 100; ++i) {
    moved = false;
    ASSERT_TRUE(end(0).Progress(&moved).ok());
    EXPECT_FALSE(moved);
    EXPECT_TRUE(end(0).Arm());
  }
  std::byte* slot = nullptr;
  EXPECT_EQ(end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).code(), Code::kOutOfMemory);
  Recv recvs[2];
  for (Recv& recv : recvs) {
    recv.capacity = 4096;
    ASSERT_TRUE(end(0).PostRecv(&recv).ok());
  }
  EXPECT_EQ(AwaitEnd(0).code(), Code::kOutOfMemory);
  for (Recv& recv : recvs) {
    EXPECT_EQ(recv.code, Code::kOk);
    end(0).Release(&recv);
  }
  EXPECT_EQ(calls, 1);
  for (const int side : {0, 1}) AwaitClose(side);
  EXPECT_EQ(calls, 1);
}

TEST_F(ResumeFailureTest, WithoutASecondLinkClosingEndsAllTheSame) {
  int calls = 0;
  Open([&calls](const TransportConfig&, const LinkRequest&, const LinkStream&, std::unique_ptr<Endpoint>*) {
    ++calls;
    return Status(Code::kOutOfMemory, "no memory, says the test");
  });
  SimulatedVerbs::FailPairs();
  StopFirst();
  for (const Deadline give_up = DeadlineAfter(kContractPatience); calls < 2 && Now() < give_up;) {
    bool moved = false;
    (void)end(0).Progress(&moved);
    (void)end(1).Close();
  }
  for (const int side : {0, 1}) AwaitClose(side);
  EXPECT_EQ(calls, 2) << "once for each end";
}

// It leaves once it has said that its device has stopped; its peer has done nothing since.
TEST_F(ResumeFailureTest, APeerThatStopsAndLeavesEndsTheLinkBetweenSlices) {
  Open();
  SimulatedVerbs::FailPairs();
  StopFirst();
  AwaitClose(1);
  EXPECT_EQ(Unread(), static_cast<int>(VerbsStop::kBytes));
  const Status status = AwaitEnd(0);
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.ToString();
  EXPECT_EQ(status.peer(), 1);
  EXPECT_EQ(status.message().find("in the middle of a slice"), std::string::npos) << status.message();
}

// The device here fails, and then the peer's host does not acknowledge what this end says over the stream.
TEST_F(ResumeFailureTest, APeerWhoseHostDoesNotAnswerIsNamedWhereverTheDeviceFailed) {
  constexpr int kLimitMs = 200;
  std::string why;
  const auto network = SocketCutter::Create(&why);  // Where this process may set filters.
  if (network == nullptr) GTEST_SKIP() << why;
  Open(TcpOverStream, kLimitMs);
  const std::vector<int> streams = Connected();
  ASSERT_EQ(streams.size(), 2u);
  ASSERT_EQ(Silence(streams), 2u);
  SimulatedVerbs::FailAfter(0, IBV_WC_LOC_PROT_ERR);
  Send send;
  PostOne(&send);
  const Nanoseconds begin = Now();
  const Status status = AwaitEnd(1);
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.ToString();
  EXPECT_EQ(status.peer(), 0);
  EXPECT_NE(status.message().find("does not answer over TCP either"), std::string::npos) << status.message();
  EXPECT_GE(Now() - begin, kLimitMs * kMillisecond);
  EXPECT_EQ(send.code, Code::kPeerLost);
}

// Each says that it has received slices that were never sent.
TEST_F(ResumeFailureTest, APeerWithAWrongCountBreaksTheRules) {
  for (const uint32_t slices : {2U, 100U, 0x80000000U, 0xffffffffU}) {
    SCOPED_TRACE(slices);
    Open();
    Send send;
    SendOne(&send);
    std::array<std::byte, VerbsStop::kBytes> stop;
    WriteVerbsStop({0, slices}, stop);
    WriteToAll(stop.data(), stop.size());
    for (const int side : {1, 0}) {
      const Status status = AwaitEnd(side);
      EXPECT_EQ(status.code(), Code::kProtocol) << status.ToString();
      EXPECT_EQ(status.peer(), 1 - side);
      EXPECT_NE(status.message().find("a number of received slices"), std::string::npos) << status.message();
    }
    link_.reset();
  }
}

TEST_F(ResumeFailureTest, HalfOfAWordAndTheEndIsADeath) {
  Open();
  std::array<std::byte, VerbsStop::kBytes> stop;
  WriteVerbsStop({}, stop);
  WriteToAll(stop.data(), stop.size() / 2);
  link_->Sever(0);
  const Status status = AwaitEnd(1);
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.ToString();
  EXPECT_EQ(status.peer(), 0);
}

TEST_F(ResumeFailureTest, AWordThatIsNoneBreaksTheRules) {
  for (const size_t spoilt : {size_t{0}, VerbsStop::kBytes - 1}) {  // The magic number; what is reserved.
    Open();
    std::array<std::byte, VerbsStop::kBytes> stop;
    WriteVerbsStop({}, stop);
    stop[spoilt] ^= std::byte{1};
    WriteToAll(stop.data(), stop.size());
    for (const int side : {0, 1}) {
      const Status status = AwaitEnd(side);
      EXPECT_EQ(status.code(), Code::kProtocol) << status.ToString();
      EXPECT_EQ(status.peer(), 1 - side);
    }
    link_.reset();
  }
}

// It could still write into slots, so what has arrived is not known for certain.
TEST_F(ResumeFailureTest, ADeviceThatDoesNotStopEndsTheLink) {
  Open();
  SimulatedVerbs::SetMachine({.destroy_error = EBUSY});
  SimulatedVerbs::FailPairs();
  const Status own = AwaitEnd(1);
  EXPECT_EQ(own.code(), Code::kSystem) << own.ToString();
  EXPECT_EQ(own.peer(), Status::kNoRank);
  EXPECT_EQ(own.os_errno(), EBUSY);
  EXPECT_NE(own.message().find("ending a queue pair"), std::string::npos) << own.message();
  const Status told = AwaitEnd(0);
  EXPECT_EQ(told.code(), Code::kPeerLost) << told.ToString();
  EXPECT_EQ(told.peer(), 1);
}

TEST_F(ResumeFailureTest, ADeviceThatIsGoneHasStopped) {
  Open();
  SimulatedVerbs::SetMachine({.destroy_error = EIO});
  SimulatedVerbs::FailPairs();
  EXPECT_TRUE(BothGoOn());
}

// No request of that end has failed, so there is no status of one to tell.
TEST_F(ResumeFailureTest, ADeviceWhoseQueueFailsIsToldToThePeer) {
  Open();
  SimulatedVerbs::SetMachine({.poll_error = -1});
  StopFirst();
  SimulatedVerbs::SetMachine({});
  testing::internal::CaptureStderr();
  EXPECT_TRUE(BothGoOn());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("rank 1 stopped: the device failed"), std::string::npos) << log;
  EXPECT_NE(log.find("waiting for completions for rank 0 on sim0, port 1"), std::string::npos) << log;
}

}  // namespace
}  // namespace annulus
