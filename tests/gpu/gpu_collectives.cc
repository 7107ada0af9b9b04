// gpu_collectives: allreduces on device buffers of ranks that share GPU 0, checked and timed through the C API: calls
// that block, also in memory of the virtual memory API, calls in a stream, which is then synchronized, and launches of
// a graph with such a call. Start it with annulus-run.
//
//   gpu_collectives [DRIVER [MOST_BYTES [ROUNDS]]]      DRIVER: libcuda.so.1, 256 MiB and once unless given
//
// Rank 0 prints one line for each size. Ends with status 0 when all results are right, 77 without a GPU.
//
// Threads: one.
#include <annulus.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "tests/cuda/graph_functions.h"
#include "tests/gpu/allreduce_run.h"
#include "tests/gpu/real_device.h"

namespace annulus {
namespace {

constexpr int kNoGpu = 77;
constexpr size_t kMostBytes = size_t{256} << 20;

bool Allreduce(annulus_comm_t* comm, const std::byte* in, std::byte* out, size_t count) {
  if (annulus_allreduce(comm, in, out, count, ANNULUS_FLOAT32, ANNULUS_SUM) == ANNULUS_OK) return true;
  annulus_error_t error{};
  error.struct_bytes = sizeof(error);
  annulus_last_error(&error);
  std::fprintf(stderr, "%s\n", error.message);
  return false;
}

// One call in a stream, until the stream has passed it.
class InStream {
 public:
  InStream(annulus_comm_t* comm, RealDevice* device) : comm_(comm), device_(device) {
    const cuda::ScopedContext scope(device->driver(), device->context());
    device->driver()->StreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, 0);
  }
  ~InStream() {
    const cuda::ScopedContext scope(device_->driver(), device_->context());
    device_->driver()->StreamDestroy(stream_);
  }
  InStream(const InStream&) = delete;
  InStream& operator=(const InStream&) = delete;

  // Calls until the ranks have agreed to do large ones in memory that they share.
  bool WarmUp(size_t bytes) {
    constexpr int kCalls = 40;
    std::byte* const memory = device_->Allocate(bytes);
    bool ok = true;
    for (int i = 0; ok && i < kCalls; ++i) ok = Allreduce(memory, memory, bytes / sizeof(float));
    device_->Free(memory);
    return ok;
  }

  bool Allreduce(const std::byte* in, std::byte* out, size_t count) {
    annulus_call_t call{};
    call.struct_bytes = sizeof call;
    call.kind = ANNULUS_CALL_ALLREDUCE;
    call.type = ANNULUS_FLOAT32;
    call.op = ANNULUS_SUM;
    call.sendbuf = in;
    call.recvbuf = out;
    call.count = count;
    call.stream = stream_;
    call.stream_kind = ANNULUS_STREAM_CUDA;
    annulus_request_t* request = nullptr;
    annulus_status_t status = annulus_submit(comm_, &call, 1, &request);
    if (status == ANNULUS_OK) status = annulus_request_wait(request, -1);
    annulus_request_free(request);
    const cuda::ScopedContext scope(device_->driver(), device_->context());
    return device_->driver()->StreamSynchronize(stream_) == cuda::Result::kSuccess && status == ANNULUS_OK;
  }

 private:
  annulus_comm_t* const comm_;
  RealDevice* const device_;
  cuda::Stream stream_ = nullptr;
};

// One call in a graph, which is captured for each pair of buffers and launched for each call.
class InGraph {
 public:
  InGraph(annulus_comm_t* comm, RealDevice* device, const std::string& driver)
      : comm_(comm), device_(device), scope_(device->driver(), device->context()) {
    is_open_ = graphs_.OpenLoaded(driver.c_str());
    device->driver()->StreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, 0);
  }
  ~InGraph() {
    Forget();
    device_->driver()->StreamDestroy(stream_);
  }
  InGraph(const InGraph&) = delete;
  InGraph& operator=(const InGraph&) = delete;

  bool Allreduce(const std::byte* in, std::byte* out, size_t count) {
    const bool is_new = in != call_.sendbuf || out != call_.recvbuf || count != call_.count;
    if (!is_open_ || (is_new && !Capture(in, out, count))) return false;
    return graphs_.GraphLaunch(exec_, stream_) == cuda::Result::kSuccess &&
           device_->driver()->StreamSynchronize(stream_) == cuda::Result::kSuccess;
  }

 private:
  bool Capture(const std::byte* in, std::byte* out, size_t count) {
    Forget();
    call_.struct_bytes = sizeof call_;
    call_.kind = ANNULUS_CALL_ALLREDUCE;
    call_.type = ANNULUS_FLOAT32;
    call_.op = ANNULUS_SUM;
    call_.sendbuf = in;
    call_.recvbuf = out;
    call_.count = count;
    call_.stream = stream_;
    call_.stream_kind = ANNULUS_STREAM_CUDA;
    const bool begun = graphs_.StreamBeginCapture(stream_, cuda::CaptureMode::kThreadLocal) == cuda::Result::kSuccess;
    const bool submitted = begun && annulus_submit(comm_, &call_, 1, nullptr) == ANNULUS_OK;
    annulus_error_t error{};
    error.struct_bytes = sizeof error;
    if (begun && !submitted && annulus_last_error(&error) == ANNULUS_OK) std::fprintf(stderr, "%s\n", error.message);
    const bool ended = begun && graphs_.StreamEndCapture(stream_, &graph_) == cuda::Result::kSuccess;
    return submitted && ended && graphs_.GraphInstantiateWithFlags(&exec_, graph_, 0) == cuda::Result::kSuccess;
  }
  void Forget() {
    if (exec_ != nullptr) graphs_.GraphExecDestroy(std::exchange(exec_, nullptr));
    if (graph_ != nullptr) graphs_.GraphDestroy(std::exchange(graph_, nullptr));
  }

  annulus_comm_t* const comm_;
  RealDevice* const device_;
  const cuda::ScopedContext scope_;
  cuda::GraphProgram graphs_;
  bool is_open_ = false;
  annulus_call_t call_{};
  cuda::Stream stream_ = nullptr;
  cuda::Graph graph_ = nullptr;
  cuda::GraphExec exec_ = nullptr;
};

int RunAll(const std::string& driver, size_t most_bytes, int rounds) {
  // Before the communicator, which looks for the driver.
  std::unique_ptr<RealDevice> device;
  const Status status = RealDevice::Open(driver, &device);
  if (!status.ok()) {
    std::printf("no GPU: %s\n", status.message().c_str());
    return kNoGpu;
  }
  annulus_comm_t* comm = nullptr;
  if (annulus_comm_create(nullptr, &comm) != ANNULUS_OK) return 1;
  bool ok = true;
  AllreduceRun run("allreduce", comm, device.get(), [comm](const std::byte* in, std::byte* out, size_t count) {
    return Allreduce(comm, in, out, count);
  });
  AllreduceRun mapped(
      "allreduce in mapped memory", comm, device.get(),
      [comm](const std::byte* in, std::byte* out, size_t count) { return Allreduce(comm, in, out, count); });
  const auto run_mapped = [&](size_t bytes) {
    device->set_mapped(true);
    const bool is_right = mapped.Run(bytes);
    device->set_mapped(false);
    return is_right;
  };
  InStream stream(comm, device.get());
  AllreduceRun in_stream(
      "allreduce in a stream", comm, device.get(),
      [&](const std::byte* in, std::byte* out, size_t count) { return stream.Allreduce(in, out, count); });
  InGraph graph(comm, device.get(), driver);
  AllreduceRun in_graph(
      "allreduce in a graph", comm, device.get(),
      [&](const std::byte* in, std::byte* out, size_t count) { return graph.Allreduce(in, out, count); });
  ok = stream.WarmUp(std::min(most_bytes, size_t{1} << 20));
  for (int round = 0; ok && round < rounds; ++round) {
    for (size_t bytes = 8; ok && bytes <= most_bytes; bytes *= 32)
      ok = run.Run(bytes) && run_mapped(bytes) && in_stream.Run(bytes) && in_graph.Run(bytes);
  }
  return annulus_comm_destroy(comm) == ANNULUS_OK && ok ? 0 : 1;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  return annulus::RunAll(argc > 1 ? argv[1] : "libcuda.so.1",
                         argc > 2 ? std::strtoull(argv[2], nullptr, 10) : annulus::kMostBytes,
                         argc > 3 ? std::atoi(argv[3]) : 1);
}
