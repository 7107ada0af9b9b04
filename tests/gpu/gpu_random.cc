// gpu_random: random calls whose buffers lie on GPU 0 and in host memory, beside the same calls on host memory alone:
// the results must have the same bits, and what lies around them must stay as it was. Start it with annulus-run.
//
//   gpu_random [DRIVER [CALLS [SEED]]]      DRIVER: libcuda.so.1, 1000 calls and seed 1 unless given
//
// Each round is a call that blocks, one that does not, a group, or some calls in a stream, with any collective or a
// message to the next rank, any type, operation and alignment; or some larger collectives in a stream, one after the
// other, which are folds in memory that the ranks share, once they have agreed.
// All ranks draw the same calls; each draws where its own buffers lie. Ends with status 0 when all results are right,
// 77 without a GPU.
//
// Threads: one.
#include <annulus.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/perf/perf_collective.h"
#include "tests/collectives/harness/calls.h"
#include "tests/collectives/reduce/reducer_oracle.h"
#include "tests/cuda/random_operations.h"
#include "tests/gpu/real_device.h"

namespace annulus {
namespace {

using Random = std::mt19937_64;
using perf::Kind;

constexpr int kNoGpu = 77;
constexpr size_t kAround = 64;  // Bytes around a buffer's elements, at most, which must stay as they are.

constexpr Kind kKinds[] = {Kind::kAllreduce, Kind::kReduceScatter, Kind::kAllgather, Kind::kBroadcast, Kind::kReduce,
                           Kind::kGather,    Kind::kScatter,       Kind::kAlltoall,  Kind::kSendrecv};
constexpr annulus_kind_t kCalls[] = {ANNULUS_CALL_ALLREDUCE, ANNULUS_CALL_REDUCE_SCATTER, ANNULUS_CALL_ALLGATHER,
                                     ANNULUS_CALL_BROADCAST, ANNULUS_CALL_REDUCE,         ANNULUS_CALL_GATHER,
                                     ANNULUS_CALL_SCATTER,   ANNULUS_CALL_ALLTOALL};

uint64_t Below(uint64_t bound, Random* random) { return (*random)() % bound; }

struct Job {
  annulus_comm_t* comm = nullptr;
  RealDevice* device = nullptr;
  cuda::Stream stream = nullptr;
  int rank = 0;
  int size = 0;
};

// Where a buffer lies: in host memory, in memory of cudaMalloc or of the virtual memory API.
DevicePlace::Kind DrawPlace(const Job& job, Random* own) {
  job.device->set_mapped(Below(3, own) == 0);
  return Below(4, own) == 0 ? DevicePlace::Kind::kPageable : DevicePlace::Kind::kDevice;
}

// One buffer: twice, on the host and wherever this rank has drawn it.
class Twin {
 public:
  // `content`: of the elements and all around them.
  Twin(const Job& job, size_t alignment, Bytes content, Random* own)
      : offset_(Below(kAround / 2, own) / alignment * alignment),
        on_host_(std::move(content)),
        place_(DrawPlace(job, own), on_host_.size(), job.device) {
    place_.Write(on_host_);
  }

  std::byte* At(bool on_host) { return (on_host ? on_host_.data() : place_.data()) + offset_; }
  bool AreEqual() const { return place_.Read() == on_host_; }

 private:
  const size_t offset_;
  Bytes on_host_;
  DevicePlace place_;
};

// A call and its buffers.
class RandomCall {
 public:
  // `is_large`: a larger one that may be a fold.
  RandomCall(const Job& job, bool is_large, Random* common, Random* own) : job_(job) {
    const Reduction reduction = AnyReduction(common);
    spec_.kind = kKinds[Below(std::size(kKinds), common)];
    spec_.type = static_cast<annulus_type_t>(reduction.type);
    spec_.op = static_cast<annulus_op_t>(reduction.op);
    spec_.root = static_cast<int>(Below(static_cast<uint64_t>(job.size), common));
    constexpr uint64_t kCounts[] = {3, 200, 200, 3000, 40'000};
    spec_.count = Below(kCounts[Below(std::size(kCounts), common)], common);
    if (is_large) {
      constexpr Kind kFolds[] = {Kind::kAllreduce, Kind::kAllreduce, Kind::kReduceScatter,
                                 Kind::kAllgather, Kind::kBroadcast, Kind::kReduce,
                                 Kind::kGather,    Kind::kScatter,   Kind::kAlltoall};
      spec_.kind = kFolds[Below(std::size(kFolds), common)];
      spec_.count = 20'000 + Below(40'000, common);
    }
    const bool has_one_buffer =
        (spec_.kind == Kind::kAllreduce || spec_.kind == Kind::kBroadcast) && Below(3, common) == 0;
    const size_t alignment = TypeAlignment(reduction.type);
    input_ = std::make_unique<Twin>(job, alignment, Content(reduction.type, SendCount(spec_, job.size), own), own);
    if (has_one_buffer) return;
    output_ = std::make_unique<Twin>(job, alignment, Content(reduction.type, RecvCount(spec_, job.size), own), own);
  }

  // `in_stream`: in the job's stream.
  void AddTo(bool on_host, bool in_stream, Calls* calls) {
    const auto add = [&](annulus_kind_t kind, const std::byte* in, std::byte* out, int root) {
      annulus_call_t& call = calls->Rooted(kind, in, out, spec_.count, spec_.type, root);
      call.op = spec_.op;
      if (!in_stream) return;
      call.stream = job_.stream;
      call.stream_kind = ANNULUS_STREAM_CUDA;
    };
    const std::byte* const in = input_->At(on_host);
    std::byte* const out = output_ != nullptr ? output_->At(on_host) : input_->At(on_host);
    if (spec_.kind == Kind::kSendrecv) {
      add(ANNULUS_CALL_SEND, in, nullptr, (job_.rank + 1) % job_.size);
      add(ANNULUS_CALL_RECV, nullptr, out, (job_.rank + job_.size - 1) % job_.size);
      return;
    }
    add(kCalls[static_cast<size_t>(spec_.kind)], in, out, spec_.root);
  }

  bool IsRight() const { return input_->AreEqual() && (output_ == nullptr || output_->AreEqual()); }

  std::string Name() const {
    return std::string(perf::KindName(spec_.kind)) + " of " + std::to_string(spec_.count) + " " +
           TypeName(static_cast<DataType>(spec_.type)) + ", " + OpName(static_cast<ReduceOp>(spec_.op)) + ", root " +
           std::to_string(spec_.root) + (output_ == nullptr ? ", in place" : "");
  }

 private:
  static Bytes Content(DataType type, size_t count, Random* own) {
    return RandomElements(type, count + kAround / TypeBytes(type), own);
  }

  const Job& job_;
  perf::CallSpec spec_;
  std::unique_ptr<Twin> input_;
  std::unique_ptr<Twin> output_;
};

bool Synchronize(const Job& job) {
  const cuda::ScopedContext scope(job.device->driver(), job.device->context());
  return job.device->driver()->StreamSynchronize(job.stream) == cuda::Result::kSuccess;
}

// Blocks where there is one call and `blocks`.
bool Do(const Job& job, const Calls& calls, bool blocks) {
  const annulus_status_t status =
      blocks && calls.size() == 1 ? annulus_run(job.comm, &calls.front()) : calls.Do(job.comm);
  // What is behind a call in the stream is its results.
  if (status == ANNULUS_OK && Synchronize(job)) return true;
  std::fprintf(stderr, "rank %d: %s\n", job.rank, LastMessage().c_str());
  return false;
}

// Each by itself, without waiting for the one before it.
bool SubmitInTurn(const Job& job, const std::vector<std::unique_ptr<RandomCall>>& drawn) {
  for (const auto& each : drawn) {
    Calls calls;
    each->AddTo(false, true, &calls);
    if (calls.Submit(job.comm, nullptr) == ANNULUS_OK) continue;
    std::fprintf(stderr, "rank %d: %s\n", job.rank, LastMessage().c_str());
    return false;
  }
  return Synchronize(job);
}

bool RunRound(const Job& job, uint64_t round, Random* common, Random* own) {
  enum Form { kGroup, kBlocking, kAsynchronous, kInStream, kFoldsInStream };
  const uint64_t form = Below(5, common);
  const bool in_stream = form == kInStream || form == kFoldsInStream;
  std::vector<std::unique_ptr<RandomCall>> drawn;
  for (uint64_t left = form == kGroup || in_stream ? 1 + Below(7, common) : 1; left > 0; --left) {
    drawn.push_back(std::make_unique<RandomCall>(job, form == kFoldsInStream, common, own));
  }
  for (const bool on_host : {true, false}) {
    if (form == kFoldsInStream && !on_host) {
      if (!SubmitInTurn(job, drawn)) return false;
      continue;
    }
    Calls calls;
    for (const auto& call : drawn) call->AddTo(on_host, in_stream && !on_host, &calls);
    if (!Do(job, calls, form == kBlocking)) return false;
  }
  for (const auto& call : drawn) {
    if (call->IsRight()) continue;
    const std::string what =
        "round " + std::to_string(round) + ", " + std::to_string(drawn.size()) + " calls, " + call->Name();
    std::fprintf(stderr, "rank %d: WRONG in %s\n", job.rank, what.c_str());
    annulus_comm_abort(job.comm, what.c_str());
    return false;
  }
  return true;
}

int RunAll(const std::string& driver, uint64_t rounds, uint64_t seed) {
  // Before the communicator, which looks for the driver.
  std::unique_ptr<RealDevice> device;
  const Status status = RealDevice::Open(driver, &device);
  if (!status.ok()) {
    std::printf("no GPU: %s\n", status.message().c_str());
    return kNoGpu;
  }
  Job job{.device = device.get()};
  annulus_config_t config;
  static_cast<void>(annulus_config_init(&config, sizeof config, ANNULUS_FROM_ENVIRONMENT | ANNULUS_FROM_LAUNCHER));
  // Each rank stages other calls as a whole: none, small ones, or those that it does by itself.
  constexpr const char* kLimits[] = {"device_staged_bytes=0", "device_staged_bytes=20000", nullptr};
  char rank[16] = "";
  static_cast<void>(annulus_config_value(&config, "rank", rank, sizeof rank));
  const char* const settings[] = {"stream_fold_bytes=131072", kLimits[(seed + std::strtoull(rank, nullptr, 10)) % 3],
                                  nullptr};
  config.settings = settings;
  if (annulus_comm_create(&config, &job.comm) != ANNULUS_OK) return 1;
  annulus_comm_rank(job.comm, &job.rank);
  annulus_comm_size(job.comm, &job.size);
  {
    const cuda::ScopedContext scope(device->driver(), device->context());
    const cuda::Result made = device->driver()->StreamCreateWithPriority(&job.stream, cuda::kStreamNonBlocking, 0);
    if (made != cuda::Result::kSuccess) return 1;
  }
  Random common(seed);
  Random own(seed * 1000 + static_cast<uint64_t>(job.rank) + 1);
  bool ok = true;
  for (uint64_t round = 1; ok && round <= rounds; ++round) ok = RunRound(job, round, &common, &own);
  if (job.rank == 0 && ok) {
    std::printf("random calls of %d ranks: %llu rounds from seed %llu, all right\n", job.size,
                static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(seed));
  }
  ok = annulus_comm_destroy(job.comm) == ANNULUS_OK && ok;
  const cuda::ScopedContext scope(device->driver(), device->context());
  device->driver()->StreamDestroy(job.stream);
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  return annulus::RunAll(argc > 1 ? argv[1] : "libcuda.so.1", argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1000,
                         argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
}
