// StreamOrder where a device takes its time: who may have its lock meanwhile.
#include "collectives/comm/stream_order.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collectives/reduce/graph_call.h"
#include "collectives/reduce/memory_domains.h"

namespace annulus {
namespace {

class TestCall final : public GraphCall {
 public:
  using GraphCall::GraphCall;
  void OpenForGood() override {}
  bool IsOpenForGood() const override { return false; }
};

// Streams that are captured, and a driver that pins memory only when another thread has had the lock.
class SlowStreams final : public StreamCalls {
 public:
  explicit SlowStreams(std::function<void()> pin) : pin_(std::move(pin)) {}

  Status Acquire(void*, int, size_t, bool, Deadline, Place*) override { return Status(Code::kUnsupported); }
  Status FindCapture(void*, StreamCapture* capture) override {
    capture->id = 1;
    return Status();
  }
  Status AcquireInGraph(void*, size_t, const std::shared_ptr<GraphBell>& bell, Place* place) override {
    pin_();
    call_ = std::make_unique<TestCall>(&words_, bell);
    *place = {call_.get(), nullptr, &inputs_, &outputs_, nullptr, call_.get()};
    return Status();
  }
  Status Enqueue(void*, const Place&) override { return Status(); }
  Status Finish(void*, const Place&) override { return Status(); }
  void GiveBack(const Place&) override {}
  void OpenAll() override {}
  size_t MemoryBytes() const override { return 0; }

 private:
  const std::function<void()> pin_;
  StreamWords words_;
  std::unique_ptr<TestCall> call_;
  std::vector<StreamCopy> inputs_;
  std::vector<StreamCopy> outputs_;
};

class SlowDevice final : public MemoryDomain {
 public:
  explicit SlowDevice(std::function<void()> pin) : MemoryDomain(MemoryKind::kDevice), pin_(std::move(pin)) {}

  bool Owns(const void*) const override { return false; }
  Status OpenQueue(ReduceOn, std::unique_ptr<DomainQueue>*) override { return Status(Code::kUnsupported); }
  std::unique_ptr<StreamCalls> OpenStreams(size_t) override { return std::make_unique<SlowStreams>(pin_); }
  std::byte* AllocateSlots(size_t bytes) override { return AllocateHostSlots(bytes); }
  void FreeSlots(std::byte* slots, size_t) override { FreeHostSlots(slots); }
  Status RegisterSlots(std::byte*, size_t) override { return Status(); }
  void UnregisterSlots(std::byte*, size_t) override {}

 private:
  const std::function<void()> pin_;
};

TEST(StreamOrderTest, OthersHaveTheLockWhileACaptureWaitsForTheDriver) {
  StreamOrder order(0, 1);
  CallOptions options;
  options.on_stream = true;
  CallArguments call;
  call.kind = CollectiveKind::kAllreduce;
  call.options = &options;
  std::mutex mu;
  std::condition_variable changed;
  bool has_had_it = false;
  std::thread other;
  SlowDevice device([&] {
    other = std::thread([&] {
      const std::unique_lock<std::mutex> theirs = order.Lock({&call, 1});
      EXPECT_TRUE(theirs.owns_lock());
      const std::lock_guard<std::mutex> lock(mu);
      has_had_it = true;
      changed.notify_all();
    });
    std::unique_lock<std::mutex> lock(mu);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return has_had_it; }));
  });
  MemoryDomains domains;
  domains.Add(&device);
  order.Open(&domains, SIZE_MAX, {}, {}, nullptr);
  {
    const std::unique_lock<std::mutex> own = order.Lock({&call, 1});
    StreamOrder::Call in_stream(&order);
    CallArguments staged = call;
    ASSERT_TRUE(in_stream.Stage({&staged, 1}, false, kNoDeadline).ok());
    EXPECT_TRUE(in_stream.is_captured());
  }
  other.join();
}

}  // namespace
}  // namespace annulus
