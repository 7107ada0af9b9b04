#include "tests/gpu/probe/probe_graphs.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cuda_kernels/driver/driver.h"
#include "tests/cuda/graph_functions.h"
#include "tests/gpu/probe/registered_memory.h"

namespace annulus {
namespace {

constexpr size_t kBytes = 64 * 1024;
constexpr size_t kWordsBytes = 256;
constexpr Nanoseconds kPatience = 5 * kSecond;

template <class IsSo>
bool ComesTrue(IsSo is_so) {
  const Deadline until = DeadlineAfter(kPatience);
  while (!is_so()) {
    if (Now() > until) return false;
  }
  return true;
}

// A graph as a captured call makes it, with what it works on. The GPU's memory goes to pinned memory and back.
class GraphParts {
 public:
  GraphParts(RealDevice* device, const std::string& file)
      : device_(device), scope_(device->driver(), device->context()) {
    if (!graphs_.OpenLoaded(file.c_str())) Fail("the driver has no graphs");
    if (driver()->StreamGetCaptureInfo == nullptr || driver()->StreamWaitValue64 == nullptr)
      Fail("the driver is too old for calls in graphs");
    if (!ok()) return;
    memory_ = device->Allocate(kBytes);
    Do(driver()->StreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, 0), "cuStreamCreateWithPriority");
    if (ok()) Capture();
  }
  ~GraphParts() {
    if (gate_ != nullptr) OpenForGood();
    if (stream_ != nullptr) driver()->StreamSynchronize(stream_);
    DestroyGraph();
    if (stream_ != nullptr) driver()->StreamDestroy(stream_);
    if (memory_ != nullptr) device_->Free(memory_);
  }
  GraphParts(const GraphParts&) = delete;
  GraphParts& operator=(const GraphParts&) = delete;

  bool ok() const { return wrong_.empty(); }
  const std::string& wrong() const { return wrong_; }
  void Fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  void Launch(int value) {
    Do(driver()->MemsetD8Async(cuda::ToDevice(memory_), static_cast<unsigned char>(value), kBytes, stream_),
       "cuMemsetD8Async");
    Do(graphs_.GraphLaunch(exec_, stream_), "cuGraphLaunch");
  }
  int calls() const { return calls_.load(); }
  bool is_gone() const { return is_gone_.load(); }
  bool IsIdle() const { return driver()->StreamQuery(stream_) == cuda::Result::kSuccess; }
  std::byte* pinned() { return reinterpret_cast<std::byte*>(gate_) + kWordsBytes; }
  const std::byte* memory() const { return memory_; }
  void OpenGate() { __atomic_store_n(gate_, 1, __ATOMIC_RELEASE); }
  void OpenForGood() { __atomic_store_n(gate_ + 1, 1, __ATOMIC_RELEASE); }
  void DestroyGraph() {
    if (graph_ != nullptr) Do(graphs_.GraphDestroy(std::exchange(graph_, nullptr)), "cuGraphDestroy");
    if (exec_ != nullptr) Do(graphs_.GraphExecDestroy(std::exchange(exec_, nullptr)), "cuGraphExecDestroy");
  }

 private:
  const cuda::Driver& driver() const { return device_->driver(); }
  void Do(cuda::Result result, const char* function) {
    if (result != cuda::Result::kSuccess) Fail(driver().ToStatus(result, function).message());
  }
  static void OnCall(void* data) { ++static_cast<GraphParts*>(data)->calls_; }
  static void OnEnd(void* data) { static_cast<GraphParts*>(data)->is_gone_ = true; }

  // In global mode, in which the driver is strictest. What is no part of the graph is relaxed.
  void Capture() {
    Do(graphs_.StreamBeginCapture(stream_, cuda::CaptureMode::kGlobal), "cuStreamBeginCapture");
    {
      const cuda::RelaxedCapture relaxed(driver());
      Do(registered_.Open(kWordsBytes + kBytes), "cuMemHostRegister in a capture");
      gate_ = reinterpret_cast<uint32_t*>(registered_.data());
    }
    if (ok()) CaptureAll();
    Do(graphs_.StreamEndCapture(stream_, &graph_), "cuStreamEndCapture");
    if (ok()) Do(graphs_.GraphInstantiateWithFlags(&exec_, graph_, 0), "cuGraphInstantiate");
  }
  void CaptureAll() {
    cuda::CaptureStatus status = cuda::CaptureStatus::kNone;
    uint64_t id = 0;
    cuda::Graph graph = nullptr;
    cuda::UserObject object = nullptr;
    Do(driver()->StreamGetCaptureInfo(stream_, &status, &id, &graph, nullptr, nullptr, nullptr),
       "cuStreamGetCaptureInfo");
    if (status != cuda::CaptureStatus::kActive || id == 0) Fail("a captured stream is said not to be");
    Do(driver()->UserObjectCreate(&object, this, OnEnd, 1, cuda::kUserObjectWithoutSync), "cuUserObjectCreate");
    Do(driver()->GraphRetainUserObject(graph, object, 1, cuda::kMoveUserObject), "cuGraphRetainUserObject");
    const cuda::DevicePointer gate = cuda::ToDevice(gate_);
    Do(driver().Copy(pinned(), memory_, kBytes, false, stream_), "a copy in a capture");
    Do(driver()->LaunchHostFunc(stream_, OnCall, this), "cuLaunchHostFunc in a capture");
    Do(driver()->StreamWaitValue64(stream_, gate, UINT64_MAX, cuda::kWaitValueAnd), "cuStreamWaitValue64 in a capture");
    Do(driver()->StreamWriteValue32(stream_, gate, 0, cuda::kWriteValueDefault), "cuStreamWriteValue32 in a capture");
    Do(driver().Copy(memory_, pinned(), kBytes, true, stream_), "a copy in a capture");
    // Of a few bytes, as rows.
    Do(driver().Copy(memory_, pinned(), 64, true, stream_), "a copy of rows in a capture");
  }

  RealDevice* const device_;
  const cuda::ScopedContext scope_;
  RegisteredMemory registered_{device_->driver()};
  cuda::GraphProgram graphs_;
  cuda::Stream stream_ = nullptr;
  std::byte* memory_ = nullptr;
  uint32_t* gate_ = nullptr;  // Two words, then the copy of the memory.
  cuda::Graph graph_ = nullptr;
  cuda::GraphExec exec_ = nullptr;
  std::atomic<int> calls_{0};
  std::atomic<bool> is_gone_{false};
  std::string wrong_;
};

bool Holds(const std::byte* memory, int value) {
  return std::all_of(memory, memory + kBytes, [=](std::byte each) { return each == static_cast<std::byte>(value); });
}

void CheckLaunches(RealDevice* device, GraphParts* parts, int rounds) {
  std::vector<std::byte> result(kBytes);
  for (int round = 1; round <= rounds && parts->ok(); ++round) {
    const int value = round % 200;
    parts->Launch(value);
    if (!ComesTrue([&] { return parts->calls() == round; })) return parts->Fail("no function of the host was called");
    if (!Holds(parts->pinned(), value)) return parts->Fail("the function was called before the copy was done");
    if (parts->IsIdle()) return parts->Fail("the launch did not wait for the gate");
    std::memset(parts->pinned(), value + 1, kBytes);
    parts->OpenGate();
    if (!ComesTrue([&] { return parts->IsIdle(); })) return parts->Fail("an open gate let no launch through");
    device->Read(result.data(), parts->memory(), kBytes);
    if (!Holds(result.data(), value + 1)) return parts->Fail("a copy behind the gate read what was there before");
  }
}

}  // namespace

std::string CheckGraphs(RealDevice* device, const std::string& driver, int rounds) {
  GraphParts parts(device, driver);
  if (parts.ok()) CheckLaunches(device, &parts, rounds);
  if (!parts.ok()) return parts.wrong();
  parts.OpenForGood();
  for (int i = 0; i < 10; ++i) parts.Launch(i);
  if (!ComesTrue([&] { return parts.IsIdle(); })) parts.Fail("the other half of the gate let no launch through");
  if (parts.is_gone()) parts.Fail("the user object went before its graph");
  parts.DestroyGraph();
  if (!ComesTrue([&] { return parts.is_gone(); })) parts.Fail("the user object did not go with its graph");
  return parts.wrong();
}

}  // namespace annulus
