// verbs_gpus: one rank whose buffers lie in the memory of a GPU, the stand-in's; start it with annulus-run.
//
//   verbs_gpus DRIVER      DRIVER: the stand-in, under the name of CUDA's driver
//
// Sums and broadcasts that go by slices, each checked. Each rank then prints how its slices went, as
// annulus_comm_device tells it. Ends with status 0 when all results are right.
//
// Threads: one.
#include <annulus.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "tests/cuda/fake_driver/fake_control.h"

namespace annulus {
namespace {

// Larger than what is staged as a whole, and no multiple of a slice.
constexpr size_t kCount = 300'001;
constexpr size_t kBytes = kCount * sizeof(float);

// As a program that uses CUDA has it before its first communicator.
cuda::FakeControl* LoadDriver(const char* file) {
  void* const handle = dlopen(file, RTLD_NOW);
  if (handle == nullptr) return nullptr;
  const auto control = reinterpret_cast<cuda::GetFakeControl>(dlsym(handle, "fake_cuda_control"));
  if (control != nullptr) control()->Reset({});
  return control != nullptr ? control() : nullptr;
}

class Rank {
 public:
  Rank(annulus_comm_t* comm, cuda::FakeControl* gpu) : comm_(comm), gpu_(gpu), memory_(gpu->Allocate(0, kBytes)) {
    annulus_comm_rank(comm, &rank_);
    annulus_comm_size(comm, &size_);
  }
  ~Rank() { gpu_->Free(memory_); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  bool Sum() {
    Fill();
    const auto sum = static_cast<float>(size_ * (size_ + 1) / 2);
    return annulus_allreduce(comm_, memory_, memory_, kCount, ANNULUS_FLOAT32, ANNULUS_SUM) == ANNULUS_OK && IsAll(sum);
  }
  bool Broadcast(int root) {
    Fill();
    return annulus_broadcast(comm_, memory_, memory_, kCount, ANNULUS_FLOAT32, root) == ANNULUS_OK &&
           IsAll(static_cast<float>(root + 1));
  }
  void Tell(bool ok) const {
    annulus_device_t device{};
    device.struct_bytes = sizeof device;
    annulus_comm_device(comm_, &device);
    std::printf("rank %d: results on %s are %s; why not better: %s\n", rank_, device.name, ok ? "right" : "WRONG",
                device.why);
  }
  int size() const { return size_; }

 private:
  void Fill() {
    const std::vector<float> content(kCount, static_cast<float>(rank_ + 1));
    gpu_->Write(memory_, content.data(), kBytes);
  }
  bool IsAll(float value) const {
    std::vector<float> content(kCount);
    gpu_->Read(content.data(), memory_, kBytes);
    return std::ranges::count(content, value) == static_cast<ptrdiff_t>(kCount);
  }

  annulus_comm_t* const comm_;
  cuda::FakeControl* const gpu_;
  std::byte* const memory_;
  int rank_ = 0;
  int size_ = 0;
};

int RunAll(const char* driver) {
  cuda::FakeControl* const gpu = LoadDriver(driver);
  annulus_comm_t* comm = nullptr;
  if (gpu == nullptr || annulus_comm_create(nullptr, &comm) != ANNULUS_OK) return 1;
  bool ok = true;
  {
    Rank rank(comm, gpu);
    for (int round = 0; ok && round < 2; ++round) ok = rank.Sum();
    for (int root = 0; ok && root < rank.size(); ++root) ok = rank.Broadcast(root);
    rank.Tell(ok);
  }
  return annulus_comm_destroy(comm) == ANNULUS_OK && ok ? 0 : 1;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) { return argc == 2 ? annulus::RunAll(argv[1]) : 2; }
