// Device buffers through the C API of a program that has loaded CUDA's driver, here the stand-in under the driver's
// name: the library finds it by itself.
#include <annulus.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "collectives/api/process_state.h"
#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/harness/calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/collectives/harness/user_config.h"
#include "tests/cuda/fake_driver/fake_control.h"

namespace annulus {
namespace {

constexpr int kNoGpu = 7;

// As a program does that uses CUDA: before its first communicator.
cuda::FakeControl* LoadDriver() {
  static cuda::FakeControl* const fake = [] {
    void* const handle = dlopen("tests/cuda/fake_driver/libcuda.so.1", RTLD_NOW);
    EXPECT_NE(handle, nullptr) << dlerror();
    cuda::FakeControl* const control = reinterpret_cast<cuda::GetFakeControl>(dlsym(handle, "fake_cuda_control"))();
    control->Reset({.devices = 2});
    return control;
  }();
  return fake;
}

annulus_device_t DeviceOf(annulus_comm_t* comm) {
  annulus_device_t device{};
  device.struct_bytes = sizeof device;
  EXPECT_EQ(annulus_comm_device(comm, &device), ANNULUS_OK);
  return device;
}

// Calls test(comm, rank, count) on three ranks over each transport, with counts that take different ways.
template <class Test>
void OnThreeRanks(Test test) {
  for (const char* transport : {"shm", "tcp"}) {
    ClusterConfig config;
    config.nranks = 3;
    config.transport = transport;
    Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
      SCOPED_TRACE(transport);
      for (const size_t count : {size_t{1}, size_t{700}, size_t{200'000}}) test(comm, rank, count);
    });
  }
}

// Before all others: the GPU is taken up once.
TEST(CudaApiTest, ACommunicatorTellsWhichDeviceItUsesOnceItUsesOne) {
  cuda::FakeControl* const fake = LoadDriver();
  ClusterConfig config;
  config.nranks = 1;
  Cluster(config).Run([&](annulus_comm_t* comm, int) {
    annulus_device_t device = DeviceOf(comm);
    EXPECT_EQ(device.driver, 13000);
    EXPECT_EQ(device.path, ANNULUS_PATH_NONE);
    EXPECT_EQ(device.number, -1);
    EXPECT_STREQ(device.name, "");
    EXPECT_NE(std::string(device.why).find("device buffer"), std::string::npos) << device.why;
    std::byte* const memory = fake->Allocate(0, 64);
    EXPECT_EQ(annulus_allreduce(comm, memory, memory, 8, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK);
    fake->Free(memory);
    device = DeviceOf(comm);
    EXPECT_EQ(device.number, 0);
    EXPECT_EQ(device.capability, 90);
    EXPECT_STREQ(device.name, "Fake GPU (sm_90)");
    // A build without a CUDA compiler has no kernels.
    EXPECT_EQ(device.path, device.why[0] == '\0' ? ANNULUS_PATH_KERNELS : ANNULUS_PATH_STAGED);
  });
}

TEST(CudaApiTest, TheDriverOfTheProgramIsFoundAndItsMemoryReduced) {
  cuda::FakeControl* const fake = LoadDriver();
  OnThreeRanks([&](annulus_comm_t* comm, int rank, size_t count) {
    const Numbers input = Contribution(rank, count, 1);
    const size_t bytes = count * sizeof input[0];
    std::byte* const in = fake->Allocate(0, bytes);
    std::byte* const out = fake->Allocate(0, bytes);
    fake->Write(in, input.data(), bytes);
    EXPECT_EQ(annulus_allreduce(comm, in, out, count, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK) << LastMessage(comm);
    Numbers result(count);
    fake->Read(result.data(), out, bytes);
    EXPECT_TRUE(result == SumOfAll(3, count, 1)) << count << " elements";
    // In place, and asynchronously.
    annulus_request_t* request = nullptr;
    ASSERT_EQ(annulus_allreduce_async(comm, in, in, count, ANNULUS_INT64, ANNULUS_SUM, &request), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    fake->Read(result.data(), in, bytes);
    EXPECT_TRUE(result == SumOfAll(3, count, 1));
    fake->Free(in);
    fake->Free(out);
  });
  EXPECT_NE(c_api::OfProcess().cuda, nullptr);
  EXPECT_EQ(fake->Counts().launches > 0, !cuda::KernelImage().empty());
  EXPECT_GT(fake->Counts().copies, 0);
  EXPECT_EQ(fake->Counts().lazy_loads, 0);
  EXPECT_EQ(fake->Counts().streams, 0) << "of communicators that are gone";
  EXPECT_EQ(fake->Violations(), std::vector<std::string>());
}

TEST(CudaApiTest, BuffersLieOnSeveralGpusOfAProcess) {
  cuda::FakeControl* const fake = LoadDriver();
  OnThreeRanks([&](annulus_comm_t* comm, int rank, size_t count) {
    for (int round = 0; round < 4; ++round) {
      const Numbers input = Contribution(rank, count, round);
      const size_t bytes = count * sizeof input[0];
      // On each rank and in each round others.
      std::byte* const in = fake->Allocate((rank + round) % 2, bytes);
      std::byte* const out = fake->Allocate((rank + round / 2) % 2, bytes);
      fake->Write(in, input.data(), bytes);
      EXPECT_EQ(annulus_allreduce(comm, in, out, count, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK) << LastMessage(comm);
      Numbers result(count);
      fake->Read(result.data(), out, bytes);
      EXPECT_TRUE(result == SumOfAll(3, count, round)) << count << " elements";
      fake->Free(in);
      fake->Free(out);
    }
    EXPECT_EQ(DeviceOf(comm).number, 0) << "the first that was used";
  });
  EXPECT_EQ(fake->Violations(), std::vector<std::string>());
}

// Sums the ones of two ranks on GPU 0.
annulus_status_t SumOnGpu(annulus_comm_t* comm, cuda::FakeControl* fake) {
  const Numbers ones(100'000, 1);
  Numbers sums(ones.size());
  const size_t bytes = ones.size() * sizeof ones[0];
  std::byte* const memory = fake->Allocate(0, bytes);
  fake->Write(memory, ones.data(), bytes);
  const annulus_status_t status = annulus_allreduce(comm, memory, memory, ones.size(), ANNULUS_INT64, ANNULUS_SUM);
  fake->Read(sums.data(), memory, bytes);
  EXPECT_TRUE(status != ANNULUS_OK || sums == Numbers(ones.size(), 2));
  fake->Free(memory);
  return status;
}

TEST(CudaApiTest, TheUserSaysWhereReductionsRun) {
  cuda::FakeControl* const fake = LoadDriver();
  for (const char* where : {"auto", "gpu", "cpu"}) {
    ClusterConfig config;
    config.device_reduce = where;
    const int64_t launches = fake->Counts().launches;
    Cluster(config).Run([&](annulus_comm_t* comm, int) {
      const bool has_kernels = !cuda::KernelImage().empty();
      const bool is_refused = !has_kernels && std::string(where) == "gpu";
      EXPECT_EQ(SumOnGpu(comm, fake), is_refused ? ANNULUS_UNSUPPORTED : ANNULUS_OK) << LastMessage(comm);
      EXPECT_TRUE(!is_refused || LastMessage(comm).find("ANNULUS_DEVICE_REDUCE") != std::string::npos);
      const annulus_device_t device = DeviceOf(comm);
      if (std::string(where) != "cpu") return;
      EXPECT_EQ(device.path, ANNULUS_PATH_STAGED);
      EXPECT_EQ(std::string(device.why).find("ANNULUS_DEVICE_REDUCE") != std::string::npos, has_kernels) << device.why;
    });
    EXPECT_EQ(fake->Counts().launches > launches, std::string(where) != "cpu" && !cuda::KernelImage().empty()) << where;
  }
}

TEST(CudaApiTest, AGpuThatTheUserNamesMustBeThere) {
  LoadDriver();
  UserConfig config(0);
  config.rank = 0;
  config.size = 1;
  config.Set("device", kNoGpu);
  annulus_comm_t* comm = nullptr;
  EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_SYSTEM_ERROR);
  EXPECT_NE(LastMessage().find("device (ANNULUS_DEVICE) is 7"), std::string::npos) << LastMessage();
  config.Set("device", 0);
  ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
  EXPECT_GE(DeviceOf(comm).number, 0);
  EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
}

// No rank can work on it: the call is refused, and the communicator lives.
TEST(CudaApiTest, ABufferOnAGpuThatCannotBeUsedIsRefused) {
  cuda::FakeControl* const fake = LoadDriver();
  Cluster(ClusterConfig()).Run([&](annulus_comm_t* comm, int rank) {
    const Numbers input = Contribution(rank, 100, 1);
    const size_t bytes = input.size() * sizeof input[0];
    std::byte* const good = fake->Allocate(0, bytes);
    std::byte* const nowhere = fake->Allocate(kNoGpu, bytes);
    for (int round = 0; round < 2; ++round) {
      fake->Write(good, input.data(), bytes);
      EXPECT_EQ(annulus_allreduce(comm, good, good, 100, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK) << LastMessage(comm);
      EXPECT_EQ(annulus_allreduce(comm, nowhere, nowhere, 100, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_SYSTEM_ERROR);
      EXPECT_NE(std::string(LastMessage(comm)).find("cuDeviceGet"), std::string::npos) << LastMessage(comm);
    }
    Numbers result(100);
    fake->Read(result.data(), good, bytes);
    EXPECT_TRUE(result == SumOfAll(2, 100, 1));
    fake->Free(good);
    fake->Free(nowhere);
  });
}

TEST(CudaApiTest, ABufferThatTheCallDoesNotUseMayLieAnywhere) {
  cuda::FakeControl* const fake = LoadDriver();
  Cluster(ClusterConfig()).Run([&](annulus_comm_t* comm, int rank) {
    std::byte* const elsewhere = fake->Allocate(kNoGpu, 64);
    int64_t in = rank + 1;
    int64_t out = 0;
    const auto* const sent = rank == 0 ? static_cast<const void*>(&in) : elsewhere;
    void* const received = rank == 0 ? static_cast<void*>(&out) : elsewhere;
    EXPECT_EQ(annulus_reduce(comm, &in, received, 1, ANNULUS_INT64, ANNULUS_SUM, 0), ANNULUS_OK) << LastMessage(comm);
    EXPECT_EQ(out, rank == 0 ? 3 : 0);
    EXPECT_EQ(annulus_broadcast(comm, sent, &out, 1, ANNULUS_INT64, 0), ANNULUS_OK) << LastMessage(comm);
    EXPECT_EQ(out, 1);
    EXPECT_EQ(annulus_allreduce(comm, elsewhere, elsewhere, 0, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK);
    Calls calls;
    calls.Rooted(ANNULUS_CALL_BROADCAST, sent, &out, 1, ANNULUS_INT64, 0);
    calls.Allreduce(elsewhere, elsewhere, 0, ANNULUS_INT64, ANNULUS_SUM);
    EXPECT_EQ(calls.Do(comm), ANNULUS_OK) << LastMessage(comm);
    fake->Free(elsewhere);
  });
}

// Over each transport, calls in slices and staged ones.
struct Way {
  const char* transport;
  size_t count;
};
constexpr Way kWays[] = {{"shm", 1 << 20}, {"tcp", 1 << 20}, {"shm", 1000}, {"tcp", 1000}};

// The GPU does not begin its work before the failed call waits for it.
TEST(CudaApiTest, AFailedCallReturnsWhenNoWorkIsLeftOnItsBuffers) {
  cuda::FakeControl* const fake = LoadDriver();
  for (const Way& way : kWays) {
    ClusterConfig config;
    config.transport = way.transport;
    std::atomic<bool> returned{false};
    std::thread gate;
    Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
      // A rank whose inputs are being copied learns of it by the verdict, the other one by the link.
      if (rank == 1 && way.count < 10'000) annulus_comm_abort(comm, nullptr);
      if (rank == 1) return;  // Leaves.
      std::byte* const memory = fake->Allocate(0, way.count * sizeof(int64_t));
      fake->Hold(true);
      gate = std::thread([&] {
        while (!returned && fake->Counts().waiting == 0) std::this_thread::yield();
        fake->Hold(false);
      });
      EXPECT_NE(annulus_allreduce(comm, memory, memory, way.count, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK);
      returned = true;
      fake->Free(memory);
      gate.join();
    });
  }
  EXPECT_EQ(fake->Violations(), std::vector<std::string>());
}

// Nobody waits for the calls.
TEST(CudaApiTest, ADestroyedCommunicatorLeavesNoWork) {
  cuda::FakeControl* const fake = LoadDriver();
  for (const Way& way : kWays) {
    ClusterConfig config;
    config.transport = way.transport;
    std::vector<std::byte*> memory;
    for (int i = 0; i < 4; ++i) memory.push_back(fake->Allocate(0, way.count * sizeof(int64_t)));
    fake->Hold(true);
    std::atomic<bool> ends{false};
    std::thread gate([&] {
      while (!ends && fake->Counts().waiting == 0) std::this_thread::yield();
      fake->Hold(false);
    });
    Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
      for (int call = 0; call < 2; ++call) {
        std::byte* const own = memory[static_cast<size_t>(2 * rank + call)];
        annulus_request_t* request = nullptr;
        ASSERT_EQ(annulus_allreduce_async(comm, own, own, way.count, ANNULUS_INT64, ANNULUS_SUM, &request), ANNULUS_OK);
      }
    });
    for (std::byte* const each : memory) fake->Free(each);
    ends = true;
    gate.join();
  }
  EXPECT_EQ(fake->Counts().streams, 0);
  EXPECT_EQ(fake->Violations(), std::vector<std::string>());
}

}  // namespace
}  // namespace annulus
