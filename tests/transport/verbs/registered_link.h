// A link over the simulated provider for tests of registered memory: what its ends send, expect and give back.
//
// Threads: one.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "base/clock.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/memory/memory.h"
#include "transport/transport.h"
#include "transport/verbs/verbs.h"

namespace annulus {

inline bool IsAll(const std::byte* data, size_t bytes, std::byte value) {
  return std::all_of(data, data + bytes, [value](std::byte each) { return each == value; });
}

// Rank 0 sends and rank 1 receives.
class RegisteredLinkTest : public ::testing::Test {
 protected:
  static constexpr int kSlots = 4;
  static constexpr size_t kSlotBytes = 4096;
  static constexpr size_t kBytes = 16 * kSlotBytes;  // Size of the memory that Allocate returns.

  void SetUp() override { SimulatedVerbs::SetMachine({}); }
  void TearDown() override {
    SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
    link_.reset();
    SimulatedVerbs::SetMachine({});
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.refused_posts, 0u);
    EXPECT_EQ(counts.read_stalls, 0u);
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }

  // `set`: may change a rank's settings.
  template <class SetUpRank>
  void OpenWith(const SetUpRank& set) {
    const auto make = [&set](TransportConfig config) {
      set(&config);
      return CreateVerbsTransportOver(SimulatedVerbs::Api(), "", config);
    };
    link_.reset();
    link_ = TransportLink::Open(make, nullptr, {.slot_bytes = kSlotBytes, .slots = kSlots});
    ASSERT_NE(link_, nullptr);
  }
  Endpoint& end(int side) { return link_->end(side); }

  static std::byte* Allocate() {
    void* memory = nullptr;
    EXPECT_TRUE(TestRegistry().Allocate(kBytes, &memory).ok());
    return static_cast<std::byte*>(memory);
  }
  static void Free(std::byte* memory) { EXPECT_TRUE(memory == nullptr || TestRegistry().Free(memory).ok()); }

  // `ready`: what of it can be sent already.
  Send* Post(const std::byte* data, uint32_t bytes, uint32_t ready = UINT32_MAX) {
    Send* const send = &sends_.emplace_back();
    send->data = data;
    send->bytes = bytes;
    send->ready = std::min(bytes, ready);
    const Status status = end(0).PostSend(send);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return send;
  }
  Recv* Expect(std::byte* landing = nullptr, uint32_t capacity = kSlotBytes) {
    Recv* const recv = &recvs_.emplace_back();
    recv->landing = landing;
    recv->capacity = capacity;
    const Status status = end(1).PostRecv(recv);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return recv;
  }
  // Drives both ends until `done`. Returns false when one fails or nothing comes of it.
  template <class Done>
  bool Drive(const Done& done) {
    for (const Deadline deadline = DeadlineAfter(kContractPatience); !done();) {
      if (Now() > deadline) return false;
      bool moved = false;
      for (const int side : {0, 1}) {
        if (!end(side).Progress(&moved).ok()) return false;
      }
      if (!moved) link_->Pass();
    }
    return true;
  }
  // Drives one end until it fails. Returns why it did; OK when it never did.
  Status DriveUntilItFails(int side) {
    Status status;
    bool moved = false;
    for (const Deadline deadline = DeadlineAfter(kContractPatience); status.ok() && Now() < deadline;) {
      status = end(side).Progress(&moved);
      link_->Pass();
    }
    return status;
  }

  std::deque<Send> sends_;
  std::deque<Recv> recvs_;
  std::unique_ptr<ContractLink> link_;
};

// Each rank has memory of its own, and rank 1 reads slices of kLeast bytes and more from that of rank 0.
class ReadLinkTest : public RegisteredLinkTest {
 protected:
  static constexpr int64_t kLeast = 1000;

  void SetUp() override {
    RegisteredLinkTest::SetUp();
    from_ = Allocate();
    to_ = Allocate();
    ASSERT_TRUE(from_ != nullptr && to_ != nullptr);
    for (size_t i = 0; i < kBytes; ++i) from_[i] = static_cast<std::byte>(i * 7 + 1);
    Open();
  }
  void TearDown() override {
    RegisteredLinkTest::TearDown();
    Free(from_);
    Free(to_);
  }

  void Open(int64_t read_bytes_of_0 = kLeast, int64_t read_bytes_of_1 = kLeast, const char* ports = "") {
    OpenWith([=](TransportConfig* config) {
      config->settings.Set("verbs_read_bytes", config->rank == 0 ? read_bytes_of_0 : read_bytes_of_1);
      config->settings.Set("verbs_device", std::string(ports));
    });
  }
  std::byte* from() { return from_; }
  std::byte* to() { return to_; }

  // Lets both ends do all that they can without more requests.
  void DriveUntilQuiet() {
    for (int quiet = 0; quiet < 100; ++quiet) {
      bool moved = false;
      for (const int side : {0, 1}) ASSERT_TRUE(end(side).Progress(&moved).ok());
      if (moved || SimulatedVerbs::Counts().waiting > 0) quiet = 0;
      link_->Pass();
    }
  }

 private:
  std::byte* from_ = nullptr;
  std::byte* to_ = nullptr;
};

}  // namespace annulus
