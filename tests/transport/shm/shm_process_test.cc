// Shared memory between real processes: long random traffic, and a peer that is killed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "tests/transport/contract/contract_traffic.h"
#include "tests/transport/shm/shm_pair.h"
#include "transport/shm/shm.h"

namespace annulus {
namespace {

constexpr char kKey[] = "a key of the shared memory tests";
constexpr Nanoseconds kNoticeLimit = kSecond;  // How soon a death must be known.

// This process's end of a link whose other end is at the other side of `channel`.
struct Link {
  Link(int rank, int channel, size_t slot_bytes, int slots) {
    TransportConfig config;
    config.rank = rank;
    config.slot_bytes = slot_bytes;
    config.slots = slots;
    config.reactor = &reactor;
    config.settings.Set("shm_stores", static_cast<int64_t>(SlotStores::kPlain));  // Near peers would not lend.
    const auto exchange = [channel](const std::string& address) { return Swap(channel, address); };
    status = ConnectOne(config, kKey, CreateShmTransport, exchange, DeadlineAfter(kContractPatience), &endpoint);
    if (!status.ok()) ADD_FAILURE() << "rank " << rank << ": " << status.ToString();
  }

  Reactor reactor;
  Status status;
  std::unique_ptr<Endpoint> endpoint;
};

// Sends `out` and receives `in`, asleep when there is nothing to do.
void Exchange(Link* link, const Plan& out, const Plan& in) {
  SliceTalker talker(link->endpoint.get(), out);
  SliceListener listener(link->endpoint.get(), in);
  const Deadline deadline = DeadlineAfter(6 * kContractPatience);
  while (!(talker.done() && listener.done())) {
    bool moved = false;
    const Status status = link->endpoint->Progress(&moved);
    const bool stepped = static_cast<int>(talker.Step()) + static_cast<int>(listener.Step()) != 0;
    moved |= stepped;
    // The peer may be done, and gone, while what it sent is still held here.
    const bool fails = !status.ok() && !(stepped && status.code() == Code::kPeerLost);
    if (fails || talker.broken() || listener.broken() || Now() > deadline) {
      ADD_FAILURE() << "rank " << 1 - link->endpoint->peer() << ": " << status.ToString() << ", or out of time";
      break;
    }
    if (!moved && link->endpoint->Arm()) link->reactor.WaitUntil(deadline);
  }
  link->endpoint->Close();
}

TEST(ShmProcesses, AHundredThousandSlicesOfRandomSizesPassBothWays) {
  const Plan forward{.seed = 71, .slices = 100'000, .max_bytes = 600, .window = 7};
  const Plan backward{.seed = 72, .slices = 100'000, .max_bytes = 600, .window = 5};
  ForkedChild child([&](int channel) {
    Link link(0, channel, 4096, 4);
    if (link.endpoint) Exchange(&link, forward, backward);
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  Link link(1, child.channel(), 4096, 4);
  ASSERT_NE(link.endpoint, nullptr);
  Exchange(&link, backward, forward);
  EXPECT_EQ(child.Wait(DeadlineAfter(kContractPatience)), 0);
}

TEST(ShmProcesses, LargeSlotsPassBothWays) {
  const Plan forward{.seed = 73, .slices = 40, .max_bytes = 256 * 1024, .window = 8};
  const Plan backward{.seed = 74, .slices = 40, .max_bytes = 256 * 1024, .window = 3, .gradual = true};
  ForkedChild child([&](int channel) {
    Link link(0, channel, 256 * 1024, 8);
    if (link.endpoint) Exchange(&link, forward, backward);
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  Link link(1, child.channel(), 256 * 1024, 8);
  ASSERT_NE(link.endpoint, nullptr);
  Exchange(&link, backward, forward);
  EXPECT_EQ(child.Wait(DeadlineAfter(kContractPatience)), 0);
}

// A child that sends `slices` slices, says so, and does nothing more.
int SendAndStall(int channel, int slices) {
  Link link(0, channel, 4096, 4);
  if (!link.endpoint) return 1;
  std::deque<Send> sends;
  for (int i = 0; i < slices; ++i) {
    std::byte* slot = nullptr;
    Send* send = &sends.emplace_back();
    if (!link.endpoint->AcquireSlot(Endpoint::kWholeSlot, &slot).ok()) return 2;
    send->data = slot;
    send->bytes = send->ready = 1000;
    send->tag.words[0] = static_cast<uint64_t>(i);
    if (!link.endpoint->PostSend(send).ok()) return 3;
  }
  bool moved = false;
  if (!link.endpoint->Progress(&moved).ok()) return 4;
  if (slices > 0 && sends.back().code != Code::kOk) return 5;
  (void)Swap(channel, "ready");
  return 6;  // The parent has not killed this process in time.
}

void ExpectLost(const Status& status, const ForkedChild& child) {
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.ToString();
  EXPECT_EQ(status.peer(), 0);
  const std::string who = "rank 0 (process " + std::to_string(child.pid()) + ") died";
  EXPECT_NE(status.message().find(who), std::string::npos) << status.ToString();
}

void AwaitReady(const ForkedChild& child) {
  char text[16];
  pollfd readable{child.channel(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, static_cast<int>(kContractPatience / kMillisecond)), 1);
  ASSERT_EQ(recv(child.channel(), text, sizeof(text), 0), 5);
}

constexpr uint32_t kLent = 32 * 1024;
constexpr int kLoans = 50;

// A child that lends memory with another content each time, and changes it as soon as it may.
int Lend(int channel) {
  Link link(0, channel, 2 * kLent, 4);
  if (!link.endpoint || Swap(channel, "made") != "made") return 1;
  std::vector<std::byte> memory(kLent);
  const Deadline deadline = DeadlineAfter(kContractPatience);
  for (int i = 1; i <= kLoans; ++i) {
    std::ranges::fill(memory, static_cast<std::byte>(i));
    if (!link.endpoint->shortcuts().in_place->Lends(memory.data(), kLent)) return 2;
    Send send;
    send.data = memory.data();
    send.bytes = send.ready = kLent;
    if (!link.endpoint->PostSend(&send).ok()) return 3;
    // Its patience begins when it next looks.
    if (Swap(channel, "lent") != "read") return 4;
    bool moved = false;
    while (send.code == Code::kInProgress && Now() < deadline) static_cast<void>(link.endpoint->Progress(&moved));
    if (send.code != Code::kOk) return 5;
  }
  return 0;
}

TEST(ShmProcesses, LentSlicesAreCopiedFromTheOtherProcess) {
  ForkedChild child(Lend);
  Link link(1, child.channel(), 2 * kLent, 4);
  ASSERT_NE(link.endpoint, nullptr);
  std::vector<std::byte> landing(kLent);
  if (!MayLand(link.endpoint.get(), MemoryKind::kHost, landing.data(), kLent))
    GTEST_SKIP() << "processes may not read each other here";
  ASSERT_EQ(Swap(child.channel(), "made"), "made");
  const Deadline deadline = DeadlineAfter(kContractPatience);
  for (int i = 1; i <= kLoans; ++i) {
    Recv recv;
    recv.landing = landing.data();
    recv.capacity = kLent;
    ASSERT_TRUE(link.endpoint->PostRecv(&recv).ok());
    bool moved = false;
    while (recv.code == Code::kInProgress && Now() < deadline) ASSERT_TRUE(link.endpoint->Progress(&moved).ok());
    ASSERT_EQ(recv.code, Code::kOk);
    EXPECT_EQ(recv.data, landing.data());
    EXPECT_EQ(landing, std::vector<std::byte>(kLent, static_cast<std::byte>(i)));
    ASSERT_EQ(Swap(child.channel(), "read"), "lent");
  }
  EXPECT_EQ(child.Wait(DeadlineAfter(kContractPatience)), 0);
}

TEST(ShmProcesses, AKilledPeersLoanIsNoSlice) {
  ForkedChild child([](int channel) {
    Link link(0, channel, 2 * kLent, 4);
    if (!link.endpoint || Swap(channel, "made") != "made") return 1;
    const std::vector<std::byte> memory(kLent);
    Send send;
    send.data = memory.data();
    send.bytes = send.ready = kLent;
    if (!link.endpoint->shortcuts().in_place->Lends(send.data, kLent) || !link.endpoint->PostSend(&send).ok()) return 2;
    (void)Swap(channel, "ready");
    return 6;  // The parent has not killed this process in time.
  });
  Link link(1, child.channel(), 2 * kLent, 4);
  ASSERT_NE(link.endpoint, nullptr);
  if (!MayLand(link.endpoint.get(), MemoryKind::kHost, nullptr, kLent))
    GTEST_SKIP() << "processes may not read each other here";
  ASSERT_EQ(Swap(child.channel(), "made"), "made");
  AwaitReady(child);
  child.Kill();
  EXPECT_EQ(child.Wait(DeadlineAfter(kContractPatience)), -1);
  Recv recv;
  recv.capacity = kLent;
  ASSERT_TRUE(link.endpoint->PostRecv(&recv).ok());
  bool moved = false;
  Status status;
  for (const Deadline limit = DeadlineAfter(kNoticeLimit); status.ok() && Now() < limit;)
    status = link.endpoint->Progress(&moved);
  ExpectLost(status, child);
  EXPECT_EQ(recv.code, Code::kPeerLost);
}

TEST(ShmProcesses, AKilledPeerIsNoticedWhileArmed) {
  ForkedChild child([](int channel) { return SendAndStall(channel, 0); });
  Link link(1, child.channel(), 4096, 4);
  ASSERT_NE(link.endpoint, nullptr);
  Recv recv;
  recv.capacity = 4096;
  ASSERT_TRUE(link.endpoint->PostRecv(&recv).ok());
  AwaitReady(child);
  const Deadline patience = DeadlineAfter(kContractPatience);
  bool moved = false;
  while (!link.endpoint->Arm()) {
    ASSERT_TRUE(link.endpoint->Progress(&moved).ok());
    ASSERT_LT(Now(), patience);
  }
  child.Kill();
  const Deadline limit = DeadlineAfter(kNoticeLimit);
  Status status;
  while (status.ok() && Now() < limit) {
    if (link.endpoint->Arm()) link.reactor.WaitUntil(limit);
    status = link.endpoint->Progress(&moved);
  }
  ExpectLost(status, child);
  EXPECT_EQ(recv.code, Code::kPeerLost);
}

TEST(ShmProcesses, AKilledPeerIsNoticedWhileSpinning) {
  ForkedChild child([](int channel) { return SendAndStall(channel, 0); });
  Link link(1, child.channel(), 4096, 4);
  ASSERT_NE(link.endpoint, nullptr);
  AwaitReady(child);
  bool moved = false;
  ASSERT_TRUE(link.endpoint->Progress(&moved).ok());
  child.Kill();
  const Deadline limit = DeadlineAfter(kNoticeLimit);
  Status status;
  while (status.ok() && Now() < limit) status = link.endpoint->Progress(&moved);
  ExpectLost(status, child);
}

TEST(ShmProcesses, WhatAKilledPeerHadSentStillArrives) {
  ForkedChild child([](int channel) { return SendAndStall(channel, 3); });
  Link link(1, child.channel(), 4096, 4);
  ASSERT_NE(link.endpoint, nullptr);
  AwaitReady(child);
  child.Kill();
  child.Wait(DeadlineAfter(kContractPatience));
  bool moved = false;
  for (int i = 0; i < 20'000; ++i) ASSERT_TRUE(link.endpoint->Progress(&moved).ok()) << "the error overtook the data";
  for (uint64_t i = 0; i < 3; ++i) {
    Recv recv;
    recv.capacity = 4096;
    ASSERT_TRUE(link.endpoint->PostRecv(&recv).ok());
    ASSERT_TRUE(link.endpoint->Progress(&moved).ok());
    ASSERT_EQ(recv.code, Code::kOk);
    EXPECT_EQ(recv.tag.words[0], i);
    link.endpoint->Release(&recv);
  }
  ExpectLost(link.endpoint->Progress(&moved), child);
}

}  // namespace
}  // namespace annulus
