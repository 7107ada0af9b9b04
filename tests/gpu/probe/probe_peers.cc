#include "tests/gpu/probe/probe_peers.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "collectives/cuda/cuda_device.h"
#include "collectives/cuda/mapped/cuda_pieces.h"
#include "collectives/reduce/domain_queue.h"
#include "cuda_kernels/driver/driver.h"
#include "tests/cuda/mapped_memory.h"
#include "tests/cuda/random_operations.h"

namespace annulus {
namespace {

constexpr size_t kCount = 100'003;
constexpr size_t kBytes = kCount * sizeof(uint32_t);

// Memory of cudaMalloc on a GPU.
class Memory {
 public:
  Memory(const CudaDevice& gpu, RealDevice* device) : gpu_(gpu), device_(device) {
    const cuda::ScopedContext scope(gpu.driver(), gpu.context());
    if (gpu.driver()->MemAlloc(&begin_, kBytes) != cuda::Result::kSuccess) begin_ = 0;
  }
  ~Memory() {
    const cuda::ScopedContext scope(gpu_.driver(), gpu_.context());
    gpu_.driver()->MemFree(begin_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return cuda::FromDevice(begin_); }
  void Write(const std::vector<uint32_t>& values) { device_->Write(data(), values.data(), kBytes); }
  bool Has(const std::vector<uint32_t>& values) const {
    std::vector<uint32_t> found(kCount);
    device_->Read(found.data(), data(), kBytes);
    return found == values;
  }

 private:
  const CudaDevice& gpu_;
  RealDevice* const device_;
  cuda::DevicePointer begin_ = 0;
};

SliceOp On(const CudaDevice& gpu, std::byte* to, const std::byte* a, const std::byte* b) {
  SliceOp op;
  op.dst[0] = to;
  op.inline_src[0] = a;
  op.inline_src[1] = b;
  op.num_sources = b != nullptr ? 2 : 1;
  op.count = kCount;
  op.type = DataType::kUint32;
  op.device = gpu.ordinal();
  return op;
}

std::string Text(const Status& status) { return status.ok() ? "" : status.ToString(); }

// GPU `from` adds what it has to `there`, which lies on `to`; that GPU's kernels read it as `here`.
std::string CheckWrites(RealDevice* device, const CudaDevice& from, const CudaDevice& to, std::byte* there,
                        const std::byte* here, int rounds) {
  std::unique_ptr<DomainQueue> queue;
  if (Status opened = device->domain()->OpenQueue(ReduceOn::kAuto, &queue); !opened.ok()) return Text(opened);
  Memory own(from, device);
  Memory copy(to, device);
  Memory zero(to, device);
  zero.Write(std::vector<uint32_t>(kCount));
  std::vector<uint32_t> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<uint32_t>(i * 2654435761U);
  own.Write(values);
  if (const Status first = RunToStatus(queue.get(), On(from, there, own.data(), nullptr)); !first.ok())
    return Text(first);
  std::vector<uint32_t> expected = values;
  for (int round = 0; round < rounds; ++round) {
    Status done = RunToStatus(queue.get(), On(from, there, there, own.data()));
    if (done.ok()) done = RunToStatus(queue.get(), On(to, copy.data(), here, zero.data()));
    if (!done.ok()) return Text(done);
    for (size_t i = 0; i < kCount; ++i) expected[i] += values[i];
    if (!copy.Has(expected))
      return "what GPU " + std::to_string(from.ordinal()) + " wrote to GPU " + std::to_string(to.ordinal()) +
             " was not seen there, in round " + std::to_string(round);
  }
  return "";
}

// Both GPUs.
struct Pair {
  const CudaDevice* all[2] = {nullptr, nullptr};
};
Status Find(RealDevice* device, Pair* pair) {
  ANNULUS_RETURN_IF_ERROR(device->cuda_domain()->Use(0, &pair->all[0]));
  return device->cuda_domain()->Use(1, &pair->all[1]);
}

std::string CheckEnabling(const CudaDevice& gpu, const CudaDevice& other) {
  const cuda::ScopedContext scope(gpu.driver(), gpu.context());
  if (gpu.driver()->CtxEnablePeerAccess(other.context(), 0) != cuda::Result::kSuccess)
    return "a GPU is not let into another's memory";
  if (gpu.driver()->CtxEnablePeerAccess(other.context(), 0) != cuda::Result::kPeerAccessAlreadyEnabled)
    return "letting a GPU in twice is not refused with error 704";
  return "";
}

}  // namespace

std::string PeersMissing(RealDevice* device) {
  cuda::Device second = 0;
  if (device->driver()->DeviceGet(&second, 1) != cuda::Result::kSuccess) return "it takes two GPUs";
  Pair pair;
  if (const Status found = Find(device, &pair); !found.ok()) return found.ToString();
  for (const int i : {0, 1}) {
    const Status reached = device->cuda_domain()->peers().Check(*pair.all[i], pair.all[1 - i]->uuid());
    if (!reached.ok()) return reached.message();
  }
  const std::string& missing = pair.all[0]->kernels_missing();
  return missing.empty() ? pair.all[1]->kernels_missing() : missing;
}

std::string CheckPeers(RealDevice* device, int rounds) {
  Pair pair;
  if (const Status found = Find(device, &pair); !found.ok()) return Text(found);
  const cuda::Driver& driver = device->driver();
  for (const int i : {0, 1}) {
    const CudaDevice& from = *pair.all[i];
    const CudaDevice& to = *pair.all[1 - i];
    std::string wrong = CheckEnabling(from, to);
    if (wrong.empty()) {
      const Memory plain(to, device);
      wrong = CheckWrites(device, from, to, plain.data(), plain.data(), rounds);
    }
    if (!wrong.empty()) return wrong;
    if (!driver.has_virtual_memory()) continue;
    std::unique_ptr<MappedMemory> mapped;
    Status made = MappedMemory::Make(driver, to.context(), {kBytes, kBytes / 2, true, to.ordinal()}, &mapped);
    std::shared_ptr<const CudaPieces::Run> run;
    CudaPieces pieces;
    std::byte* there = nullptr;
    if (made.ok()) made = pieces.Find(to, mapped->data(), kBytes, &run);
    if (made.ok()) made = run->MapFor(from, &there);
    if (!made.ok()) return "mapped memory of another GPU: " + Text(made);
    wrong = CheckWrites(device, from, to, there, mapped->data(), rounds);
    if (!wrong.empty()) return "mapped memory: " + wrong;
  }
  return "";
}

}  // namespace annulus
