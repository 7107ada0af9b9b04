// gpu_late: what a call costs the GPU while it waits for a peer that is late: how much slower a loop of copies becomes
// beside it. Two ranks that share GPU 0; start it with annulus-run.
//
//   gpu_late [DRIVER [NCCL [MILLISECONDS [ROUNDS [BYTES]]]]]
//
// DRIVER: libcuda.so.1 unless given; NCCL: its library, or "" for none; the peer is late by 1000 ms, five times, and
// the loop copies 64 MiB at a time unless given. Prints the medians, which should be less than 1 % for Annulus. Ends
// with status 0, or 77 without a GPU.
//
// Threads: a blocking call has one of its own.
#include <annulus.h>
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/copy_loop.h"
#include "tests/gpu/nccl.h"
#include "tests/gpu/real_device.h"

namespace annulus {
namespace {

constexpr int kNoGpu = 77;
constexpr size_t kCount = size_t{1} << 20;  // Floats of the call.

// A call that is begun, and later waited for.
struct Way {
  std::string name;
  std::function<void()> begin;
  std::function<bool()> end;
};

class Rank {
 public:
  Rank(annulus_comm_t* comm, RealDevice* device, int milliseconds, size_t bytes)
      : comm_(comm), device_(device), milliseconds_(milliseconds), loop_(device, bytes) {
    annulus_comm_rank(comm, &rank_);
    memory_ = device->Allocate(kCount * sizeof(float));
    const cuda::ScopedContext scope(device->driver(), device->context());
    device->driver()->StreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, 0);
    device->driver()->MemsetD8Async(cuda::ToDevice(memory_), 0, kCount * sizeof(float), stream_);
    device->driver()->StreamSynchronize(stream_);
  }
  ~Rank() {
    device_->Free(memory_);
    const cuda::ScopedContext scope(device_->driver(), device_->context());
    device_->driver()->StreamDestroy(stream_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  std::vector<Way> Ways(Nccl* nccl) {
    std::vector<Way> ways = {{"a blocking call", [this] { thread_ = std::thread([this] { Block(); }); },
                              [this] {
                                thread_.join();
                                return outcome_ == ANNULUS_OK;
                              }},
                             {"a call in a stream", [this] { Submit(); }, [this] { return Synchronize(); }}};
    if (nccl == nullptr) return ways;
    ways.push_back({"NCCL's call", [=, this] { nccl_status_ = nccl->Allreduce(memory_, memory_, kCount); },
                    [=, this] { return nccl_status_.ok() && nccl->Wait().ok(); }});
    return ways;
  }

  // False: the call failed.
  bool Measure(const Way& way, int rounds) {
    std::vector<double> losses;
    double alone = 0;
    for (int round = 0; round < rounds; ++round) {
      annulus_barrier(comm_);
      if (rank_ == 1) {
        // Late on purpose; and it leaves the GPU to the other meanwhile.
        poll(nullptr, 0, 3 * milliseconds_ + milliseconds_ / 4);
        way.begin();
        if (!way.end()) return false;
        continue;
      }
      const double before = loop_.Run(milliseconds_);
      way.begin();
      const double beside = loop_.Run(milliseconds_);
      if (!way.end()) return false;
      const double after = loop_.Run(milliseconds_);
      alone = (before + after) / 2;
      losses.push_back(1 - beside / alone);
    }
    if (rank_ != 0) return true;
    std::nth_element(losses.begin(), losses.begin() + rounds / 2, losses.end());
    std::printf("late peer, %s: a loop of copies (%.1f GB/s alone) loses %.2f %%\n", way.name.c_str(), alone / 1e9,
                100 * losses[static_cast<size_t>(rounds) / 2]);
    std::fflush(stdout);
    return true;
  }

 private:
  void Block() { outcome_ = annulus_allreduce(comm_, memory_, memory_, kCount, ANNULUS_FLOAT32, ANNULUS_SUM); }
  void Submit() {
    annulus_call_t call = {};
    call.struct_bytes = sizeof call;
    call.kind = ANNULUS_CALL_ALLREDUCE;
    call.type = ANNULUS_FLOAT32;
    call.sendbuf = call.recvbuf = memory_;
    call.count = kCount;
    call.stream = stream_;
    call.stream_kind = ANNULUS_STREAM_CUDA;
    outcome_ = annulus_submit(comm_, &call, 1, nullptr);
  }
  bool Synchronize() {
    const cuda::ScopedContext scope(device_->driver(), device_->context());
    device_->driver()->StreamSynchronize(stream_);
    annulus_error_t verdict = {};
    verdict.struct_bytes = sizeof verdict;
    return outcome_ == ANNULUS_OK && annulus_comm_verdict(comm_, &verdict) == ANNULUS_OK &&
           verdict.status == ANNULUS_OK;
  }

  annulus_comm_t* const comm_;
  RealDevice* const device_;
  const int milliseconds_;
  CopyLoop loop_;
  int rank_ = 0;
  std::byte* memory_ = nullptr;
  cuda::Stream stream_ = nullptr;
  std::thread thread_;
  annulus_status_t outcome_ = ANNULUS_OK;
  Status nccl_status_;
};

int RunAll(const std::string& driver, const std::string& library, int milliseconds, int rounds, size_t bytes) {
  std::unique_ptr<RealDevice> device;
  Status status = RealDevice::Open(driver, &device);
  if (!status.ok()) {
    std::printf("no GPU: %s\n", status.message().c_str());
    return kNoGpu;
  }
  annulus_comm_t* comm = nullptr;
  if (annulus_comm_create(nullptr, &comm) != ANNULUS_OK) return 1;
  int rank_number = 0;
  annulus_comm_rank(comm, &rank_number);
  std::unique_ptr<Nccl> nccl;
  if (!library.empty()) {
    status = Nccl::Open(library, Nccl::Sharing::kSockets, comm, device.get(), &nccl);
    if (!status.ok() && rank_number == 0) std::printf("NCCL: not run: %s\n", status.message().c_str());
  }
  bool ok = true;
  {
    Rank rank(comm, device.get(), milliseconds, bytes);
    for (const Way& way : rank.Ways(nccl.get())) {
      // The first call of each kind makes what the later ones use.
      if (!ok) break;
      way.begin();
      ok = way.end() && rank.Measure(way, rounds);
    }
  }
  nccl.reset();
  return annulus_comm_destroy(comm) == ANNULUS_OK && ok ? 0 : 1;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  return annulus::RunAll(argc > 1 ? argv[1] : "libcuda.so.1", argc > 2 ? argv[2] : "",
                         argc > 3 ? std::atoi(argv[3]) : 1000, argc > 4 ? std::atoi(argv[4]) : 5,
                         argc > 5 ? std::strtoull(argv[5], nullptr, 10) : size_t{64} << 20);
}
