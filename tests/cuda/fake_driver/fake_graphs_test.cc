// Graphs of the stand-in for CUDA's driver: captures, launches in the order of what comes after what, user objects, and
// that it finds what a user of graphs does wrong.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "tests/cuda/fake_driver/fake_cuda.h"
#include "tests/cuda/graph_functions.h"

namespace annulus::cuda {
namespace {

constexpr size_t kBytes = 64;

template <class IsSo>
bool ComesTrue(IsSo is_so) {
  const Deadline until = DeadlineAfter(60 * kSecond);
  while (!is_so()) {
    if (Now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

class FakeGraphsTest : public testing::Test {
 protected:
  void SetUp() override {
    control_ = ResetFakeCuda({.seed = 5});
    driver_ = OpenFakeCuda();
    ASSERT_TRUE(graphs_.OpenLoaded(FakeCudaFile().c_str()));
    Context context = nullptr;
    Device device = 0;
    ASSERT_EQ(driver()->DeviceGet(&device, 0), Result::kSuccess);
    ASSERT_EQ(driver()->DevicePrimaryCtxRetain(&context, device), Result::kSuccess);
    ASSERT_EQ(driver()->CtxPushCurrent(context), Result::kSuccess);
    for (Stream& stream : streams_)
      ASSERT_EQ(driver()->StreamCreateWithPriority(&stream, kStreamNonBlocking, 0), Result::kSuccess);
    void* words = nullptr;
    ASSERT_EQ(driver()->MemHostAlloc(&words, 4096, 0), Result::kSuccess);
    words_ = static_cast<uint32_t*>(std::memset(words, 0, 4096));
  }
  void TearDown() override {
    Context context = nullptr;
    EXPECT_TRUE(ComesTrue([this] { return control_->Counts().pending == 0; }));
    driver()->CtxPopCurrent(&context);
    EXPECT_EQ(control_->Violations(), violations_);
  }

  const DriverFunctions* driver() const { return driver_->operator->(); }
  void Fill(Stream stream, std::byte* memory, int value) {
    EXPECT_EQ(driver()->MemsetD8Async(ToDevice(memory), static_cast<unsigned char>(value), kBytes, stream),
              Result::kSuccess);
  }
  void Copy(Stream stream, std::byte* to, const std::byte* from) {
    EXPECT_EQ(driver()->MemcpyAsync(ToDevice(to), ToDevice(from), kBytes, stream), Result::kSuccess);
  }
  void Follow(Stream stream, Stream other) {
    Event event = nullptr;
    EXPECT_EQ(driver()->EventCreate(&event, 0), Result::kSuccess);
    EXPECT_EQ(driver()->EventRecord(event, other), Result::kSuccess);
    EXPECT_EQ(driver()->StreamWaitEvent(stream, event, 0), Result::kSuccess);
    EXPECT_EQ(driver()->EventDestroy(event), Result::kSuccess);
  }
  void Begin(CaptureMode mode = CaptureMode::kRelaxed) {
    EXPECT_EQ(graphs_.StreamBeginCapture(streams_[0], mode), Result::kSuccess);
  }
  Graph End() {
    Graph graph = nullptr;
    EXPECT_EQ(graphs_.StreamEndCapture(streams_[0], &graph), Result::kSuccess);
    return graph;
  }
  GraphExec Instantiate(Graph graph) {
    GraphExec exec = nullptr;
    EXPECT_EQ(graphs_.GraphInstantiateWithFlags(&exec, graph, 0), Result::kSuccess);
    return exec;
  }
  int First(const std::byte* memory) {
    unsigned char values[kBytes];
    control_->Read(values, memory, kBytes);
    return values[0];
  }
  bool Drain(Stream stream) {
    return ComesTrue([&] { return driver()->StreamQuery(stream) == Result::kSuccess; });
  }

  FakeControl* control_ = nullptr;
  std::unique_ptr<Driver> driver_;
  GraphProgram graphs_;
  Stream streams_[3] = {};
  uint32_t* words_ = nullptr;
  std::vector<std::string> violations_;  // That the test expects.
};

TEST_F(FakeGraphsTest, WhatIsCapturedIsDoneByEachLaunchAndNotBefore) {
  std::byte* const in = control_->Allocate(0, kBytes);
  std::byte* const out = control_->Allocate(0, kBytes);
  Fill(streams_[1], in, 1);
  Fill(streams_[1], out, 9);
  ASSERT_TRUE(Drain(streams_[1]));
  Begin();
  Copy(streams_[0], out, in);
  const Graph graph = End();
  const GraphExec exec = Instantiate(graph);
  EXPECT_EQ(First(out), 9);
  for (int value = 2; value < 20; ++value) {
    Fill(streams_[1], in, value);
    ASSERT_EQ(graphs_.GraphLaunch(exec, streams_[1]), Result::kSuccess);
    ASSERT_TRUE(Drain(streams_[1]));
    EXPECT_EQ(First(out), value);
  }
  EXPECT_EQ(graphs_.GraphExecDestroy(exec), Result::kSuccess);
  EXPECT_EQ(graphs_.GraphDestroy(graph), Result::kSuccess);
  EXPECT_EQ(control_->Counts().graphs, 0);
}

TEST_F(FakeGraphsTest, BranchesAreDoneInAnyOrderAndLaunchesInTurn) {
  std::byte* const memory = control_->Allocate(0, kBytes);
  std::byte* const left = control_->Allocate(0, kBytes);
  std::byte* const right = control_->Allocate(0, kBytes);
  std::byte* const end = control_->Allocate(0, kBytes);
  Begin();
  Fill(streams_[0], memory, 3);
  Follow(streams_[1], streams_[0]);
  Copy(streams_[1], left, memory);
  Copy(streams_[0], right, memory);
  Follow(streams_[0], streams_[1]);
  Copy(streams_[0], end, left);
  const GraphExec exec = Instantiate(End());
  // Two launches in streams that do not wait for each other.
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(graphs_.GraphLaunch(exec, streams_[0]), Result::kSuccess);
    ASSERT_EQ(graphs_.GraphLaunch(exec, streams_[2]), Result::kSuccess);
  }
  ASSERT_TRUE(Drain(streams_[0]) && Drain(streams_[2]));
  EXPECT_EQ(First(right), 3);
  EXPECT_EQ(First(end), 3);
}

TEST_F(FakeGraphsTest, BranchesThatNeedAnOrderAreFound) {
  std::byte* const memory = control_->Allocate(0, kBytes);
  Begin();
  Follow(streams_[1], streams_[0]);
  Fill(streams_[1], memory, 1);
  Fill(streams_[0], memory, 2);
  Follow(streams_[0], streams_[1]);
  const GraphExec exec = Instantiate(End());
  ASSERT_EQ(graphs_.GraphLaunch(exec, streams_[0]), Result::kSuccess);
  ASSERT_TRUE(Drain(streams_[0]));
  violations_ = control_->Violations();
  EXPECT_GT(violations_.size(), 0U);
}

TEST_F(FakeGraphsTest, AGateThatTheDeviceClosesAgainOpensEachLaunchOnceAndTheOtherHalfAll) {
  uint32_t* const gate = words_;
  Begin();
  ASSERT_EQ(driver()->StreamWaitValue64(streams_[0], ToDevice(gate), UINT64_MAX, kWaitValueAnd), Result::kSuccess);
  ASSERT_EQ(driver()->StreamWriteValue32(streams_[0], ToDevice(gate), 0, kWriteValueDefault), Result::kSuccess);
  const GraphExec exec = Instantiate(End());
  const auto is_idle = [&] { return driver()->StreamQuery(streams_[0]) == Result::kSuccess; };
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(graphs_.GraphLaunch(exec, streams_[0]), Result::kSuccess);
    EXPECT_FALSE(is_idle());
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    ASSERT_TRUE(ComesTrue(is_idle));
  }
  __atomic_store_n(gate + 1, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(graphs_.GraphLaunch(exec, streams_[0]), Result::kSuccess);
  EXPECT_TRUE(ComesTrue(is_idle));
}

struct Called {
  std::atomic<int> times{0};
  const DriverFunctions* driver = nullptr;
  std::atomic<Result> result{Result::kSuccess};
  static void Note(void* data) { ++static_cast<Called*>(data)->times; }
  static void Query(void* data) {
    auto* const called = static_cast<Called*>(data);
    called->result = called->driver->StreamQuery(ThreadStream());
    ++called->times;
  }
};

TEST_F(FakeGraphsTest, FunctionsOfTheHostAreCalledInOrderAndMustNotCallTheDriver) {
  Called called;
  called.driver = driver();
  Begin();
  ASSERT_EQ(driver()->LaunchHostFunc(streams_[0], Called::Note, &called), Result::kSuccess);
  const GraphExec exec = Instantiate(End());
  for (int i = 0; i < 20; ++i) ASSERT_EQ(graphs_.GraphLaunch(exec, streams_[0]), Result::kSuccess);
  ASSERT_TRUE(Drain(streams_[0]));
  EXPECT_EQ(called.times, 20);
  ASSERT_EQ(driver()->LaunchHostFunc(streams_[0], Called::Query, &called), Result::kSuccess);
  ASSERT_TRUE(Drain(streams_[0]));
  EXPECT_EQ(called.result, Result::kNotPermitted);
  violations_ = control_->Violations();
  EXPECT_EQ(violations_.size(), 1U);
}

TEST_F(FakeGraphsTest, AUserObjectGoesWithTheLastThatHasIt) {
  Called gone;
  uint32_t* const gate = words_;
  const auto make = [&] {
    CaptureStatus status = CaptureStatus::kNone;
    uint64_t id = 0;
    Graph graph = nullptr;
    UserObject object = nullptr;
    EXPECT_EQ(driver()->StreamGetCaptureInfo(streams_[0], &status, &id, &graph, nullptr, nullptr, nullptr),
              Result::kSuccess);
    EXPECT_EQ(status, CaptureStatus::kActive);
    EXPECT_GT(id, 0U);
    EXPECT_EQ(driver()->UserObjectCreate(&object, &gone, Called::Note, 1, kUserObjectWithoutSync), Result::kSuccess);
    EXPECT_EQ(driver()->GraphRetainUserObject(graph, object, 1, kMoveUserObject), Result::kSuccess);
  };
  Begin();
  make();
  ASSERT_EQ(driver()->StreamWaitValue32(streams_[0], ToDevice(gate), 1, kWaitValueReached), Result::kSuccess);
  const Graph graph = End();
  const GraphExec exec = Instantiate(graph);
  EXPECT_EQ(graphs_.GraphDestroy(graph), Result::kSuccess);
  ASSERT_EQ(graphs_.GraphLaunch(exec, streams_[1]), Result::kSuccess);
  EXPECT_EQ(graphs_.GraphExecDestroy(exec), Result::kSuccess);
  EXPECT_EQ(control_->Counts().user_objects, 1) << "while the launch is under way";
  __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
  EXPECT_TRUE(ComesTrue([&] { return gone.times == 1; }));
  // Of a capture that fails.
  Begin();
  make();
  Follow(streams_[1], streams_[0]);
  ASSERT_EQ(driver()->StreamWaitValue32(streams_[1], ToDevice(gate), 1, kWaitValueReached), Result::kSuccess);
  Graph none = nullptr;
  EXPECT_EQ(graphs_.StreamEndCapture(streams_[0], &none), Result::kStreamCaptureUnjoined);
  EXPECT_TRUE(ComesTrue([&] { return gone.times == 2; }));
  EXPECT_EQ(control_->Counts().user_objects, 0);
}

TEST_F(FakeGraphsTest, UnsafeCallsEndACaptureUnlessTheyAreRelaxed) {
  void* memory = nullptr;
  Graph graph = nullptr;
  for (const CaptureMode mode : {CaptureMode::kGlobal, CaptureMode::kThreadLocal}) {
    Begin(mode);
    {
      const RelaxedCapture relaxed(*driver_);
      EXPECT_EQ(driver()->MemHostAlloc(&memory, kBytes, 0), Result::kSuccess);
    }
    EXPECT_EQ(graphs_.GraphDestroy(End()), Result::kSuccess);
    Begin(mode);
    EXPECT_EQ(driver()->MemHostAlloc(&memory, kBytes, 0), Result::kStreamCaptureUnsupported);
    EXPECT_EQ(graphs_.StreamEndCapture(streams_[0], &graph), Result::kStreamCaptureInvalidated);
    Begin(mode);
    EXPECT_EQ(driver()->StreamQuery(streams_[0]), Result::kStreamCaptureUnsupported);
    EXPECT_EQ(graphs_.StreamEndCapture(streams_[0], &graph), Result::kStreamCaptureInvalidated);
  }
}

}  // namespace
}  // namespace annulus::cuda
