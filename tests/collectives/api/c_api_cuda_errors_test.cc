// What goes wrong with GPUs, as every rank of a program learns of it: what one rank can see beforehand is refused there
// and leaves the communicator as it was; what happens in the midst of a call ends it with one verdict everywhere.
//
// Each test is a process of its own with its own stand-in for CUDA's driver, which the library finds by itself.
#include <annulus.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <mutex>
#include <set>

#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/harness/calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/cuda/fake_driver/fake_control.h"

namespace annulus {
namespace {

constexpr int kRanks = 3;
constexpr size_t kCount = 40'000;
constexpr size_t kBytes = kCount * sizeof(int64_t);

using Test = std::function<void(cuda::FakeControl* fake)>;

// Calls `test` in a child, whose failures are this test's. The parent has no threads and no driver.
void WithDriver(const cuda::FakeOptions& options, const Test& test) {
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    void* const handle = dlopen("tests/cuda/fake_driver/libcuda.so.1", RTLD_NOW);
    if (handle == nullptr) _exit(2);
    cuda::FakeControl* const fake = reinterpret_cast<cuda::GetFakeControl>(dlsym(handle, "fake_cuda_control"))();
    fake->Reset(options);
    test(fake);
    for (const std::string& violation : fake->Violations()) ADD_FAILURE() << violation;
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child ended with " << status;
}

ClusterConfig Far(const char* transport = "shm") {
  ClusterConfig config;
  config.nranks = kRanks;
  config.transport = transport;
  config.timeout_ms = kFarTimeoutMs;
  return config;
}

annulus_status_t SumInPlace(annulus_comm_t* comm, void* memory, size_t count = kCount) {
  return annulus_allreduce(comm, memory, memory, count, ANNULUS_INT64, ANNULUS_SUM);
}

// The communicator still works, on host memory.
void ExpectAlive(annulus_comm_t* comm) {
  int64_t one = 1;
  EXPECT_EQ(SumInPlace(comm, &one, 1), ANNULUS_OK) << LastMessage(comm);
  EXPECT_EQ(one, kRanks);
}

void ExpectRefused(annulus_comm_t* comm, annulus_status_t status, annulus_status_t expected, const std::string& text) {
  EXPECT_EQ(status, expected) << LastMessage(comm);
  EXPECT_NE(LastMessage(comm).find(text), std::string::npos) << LastMessage(comm);
}

// A sum of ones in the memory of GPU 0.
annulus_status_t SumOnGpu(annulus_comm_t* comm, cuda::FakeControl* fake) {
  const Numbers ones(kCount, 1);
  Numbers sums(kCount);
  std::byte* const memory = fake->Allocate(0, kBytes);
  fake->Write(memory, ones.data(), kBytes);
  const annulus_status_t status = SumInPlace(comm, memory);
  fake->Read(sums.data(), memory, kBytes);
  EXPECT_TRUE(status != ANNULUS_OK || sums == Numbers(kCount, kRanks));
  fake->Free(memory);
  return status;
}

std::string WhyNotBetter(annulus_comm_t* comm) {
  annulus_device_t device{};
  device.struct_bytes = sizeof device;
  EXPECT_EQ(annulus_comm_device(comm, &device), ANNULUS_OK);
  return device.why;
}

TEST(CudaErrorsTest, ADriverThatIsTooOldIsNamedByTheFirstDeviceBuffer) {
  WithDriver({.version = 12000}, [](cuda::FakeControl* fake) {
    Cluster(Far()).Run([fake](annulus_comm_t* comm, int) {
      ExpectAlive(comm);
      ExpectRefused(comm, SumOnGpu(comm, fake), ANNULUS_UNSUPPORTED, "12.4 or newer is needed");
      EXPECT_NE(WhyNotBetter(comm).find("12.4 or newer"), std::string::npos) << WhyNotBetter(comm);
      Calls calls;
      int64_t one = 1;
      annulus_call_t& call = calls.Allreduce(&one, &one, 1, ANNULUS_INT64, ANNULUS_SUM);
      call.stream_kind = ANNULUS_STREAM_CUDA;
      ExpectRefused(comm, calls.Submit(comm, nullptr), ANNULUS_UNSUPPORTED, "ANNULUS_STREAM_CUDA, but the CUDA driver");
      ExpectAlive(comm);
    });
    EXPECT_EQ(fake->Counts().contexts, 0);
  });
}

TEST(CudaErrorsTest, AGpuWithoutKernelsIsToldAndRefusedWhereItShallReduce) {
  WithDriver({.loads_kernels = false}, [](cuda::FakeControl* fake) {
    for (const char* where : {"auto", "gpu", "cpu"}) {
      ClusterConfig config = Far();
      config.device_reduce = where;
      Cluster(config).Run([&](annulus_comm_t* comm, int) {
        // A build without a CUDA compiler has no image that could fail to load.
        const std::string why = cuda::KernelImage().empty() ? "has no device kernels" : "cuLibraryLoadData";
        if (std::string(where) == "gpu") {
          ExpectRefused(comm, SumOnGpu(comm, fake), ANNULUS_UNSUPPORTED,
                        "device_reduce (ANNULUS_DEVICE_REDUCE) is gpu");
          EXPECT_NE(LastMessage(comm).find(why), std::string::npos) << LastMessage(comm);
        } else {
          EXPECT_EQ(SumOnGpu(comm, fake), ANNULUS_OK) << LastMessage(comm);
          EXPECT_NE(WhyNotBetter(comm).find(why), std::string::npos) << WhyNotBetter(comm);
        }
        ExpectAlive(comm);
      });
    }
    EXPECT_EQ(fake->Counts().launches, 0);
  });
}

// A communicator that takes no call looks at no buffer: a driver that waits for a stream would keep the caller.
TEST(CudaErrorsTest, ACallThatMayNotStartTakesUpNoGpu) {
  WithDriver({}, [](cuda::FakeControl* fake) {
    std::byte* const memory = fake->Allocate(0, kBytes);
    // Blocking, asynchronous, and in a group.
    const auto expect_refused = [memory](annulus_comm_t* comm, annulus_status_t expected) {
      EXPECT_EQ(SumInPlace(comm, memory), expected);
      for (const int calls_of_group : {1, 2}) {
        Calls calls;
        for (int i = 0; i < calls_of_group; ++i) calls.Allreduce(memory, memory, kCount, ANNULUS_INT64, ANNULUS_SUM);
        annulus_request_t* request = nullptr;
        EXPECT_EQ(calls.Submit(comm, &request), expected);
      }
    };
    Cluster(Far()).Run([&](annulus_comm_t* comm, int) {
      annulus_barrier(comm);  // So that all have made theirs; for some it may end in what comes now.
      annulus_comm_abort(comm, "enough");
      int64_t one = 1;
      EXPECT_EQ(SumInPlace(comm, &one, 1), ANNULUS_ABORTED);
      expect_refused(comm, ANNULUS_ABORTED);
    });
    EXPECT_EQ(fake->Counts().contexts, 0);
    fake->Free(memory);
  });
}

struct Misuse {
  annulus_comm_t* comm;
  std::byte* memory;
  annulus_status_t status = ANNULUS_OK;
};

// Adds, and uses the communicator that called it.
int32_t AddAndCall(const void* left, const void* right, void* out, size_t count, annulus_type_t, void* context) {
  auto* const misuse = static_cast<Misuse*>(context);
  misuse->status = SumInPlace(misuse->comm, misuse->memory);
  for (size_t i = 0; i < count; ++i) {
    static_cast<int64_t*>(out)[i] = static_cast<const int64_t*>(left)[i] + static_cast<const int64_t*>(right)[i];
  }
  return 0;
}

TEST(CudaErrorsTest, AReductionFunctionThatUsesItsCommunicatorTakesUpNoGpu) {
  WithDriver({}, [](cuda::FakeControl* fake) {
    std::byte* const memory = fake->Allocate(0, kBytes);
    std::atomic<int> refused = 0;
    Cluster(Far()).Run([&](annulus_comm_t* comm, int) {
      Misuse misuse{comm, memory};
      annulus_op_t op{};
      ASSERT_EQ(annulus_op_create(comm, AddAndCall, &misuse, nullptr, &op), ANNULUS_OK);
      Numbers ones(kCount, 1);
      EXPECT_EQ(annulus_allreduce(comm, ones.data(), ones.data(), kCount, ANNULUS_INT64, op), ANNULUS_OK);
      refused += misuse.status == ANNULUS_INVALID_ARGUMENT ? 1 : 0;
      EXPECT_EQ(ones, Numbers(kCount, kRanks));
    });
    EXPECT_GT(refused, 0);
    EXPECT_EQ(fake->Counts().contexts, 0);
    fake->Free(memory);
  });
}

TEST(CudaErrorsTest, SlotsThatCannotBePinnedAreToldAndRefusedWhereTheGpuShallReduce) {
  WithDriver({.most_pinned = 0}, [](cuda::FakeControl* fake) {
    for (const char* where : {"auto", "gpu"}) {
      ClusterConfig config = Far();
      config.device_reduce = where;
      Cluster(config).Run([&](annulus_comm_t* comm, int) {
        const bool is_refused = std::string(where) == "gpu";
        EXPECT_EQ(SumOnGpu(comm, fake), is_refused ? ANNULUS_UNSUPPORTED : ANNULUS_OK) << LastMessage(comm);
        const std::string why = cuda::KernelImage().empty() ? "has no device kernels" : "cuMemHostRegister";
        EXPECT_NE(WhyNotBetter(comm).find(why), std::string::npos) << WhyNotBetter(comm);
        ExpectAlive(comm);
      });
    }
  });
}

TEST(CudaErrorsTest, ABufferOnAGpuThatIsNotThereIsRefused) {
  WithDriver({.devices = 2}, [](cuda::FakeControl* fake) {
    Cluster(Far()).Run([fake](annulus_comm_t* comm, int) {
      std::byte* const nowhere = fake->Allocate(2, kBytes);
      ExpectRefused(comm, SumInPlace(comm, nowhere), ANNULUS_SYSTEM_ERROR, "sendbuf: cuDeviceGet");
      fake->Free(nowhere);
      ExpectAlive(comm);
    });
  });
}

TEST(CudaErrorsTest, MemoryOfAnotherContextIsRefused) {
  WithDriver({.other_context = true}, [](cuda::FakeControl* fake) {
    Cluster(Far()).Run([fake](annulus_comm_t* comm, int) {
      ExpectRefused(comm, SumOnGpu(comm, fake), ANNULUS_UNSUPPORTED, "a context that is not the primary one");
      ExpectAlive(comm);
    });
  });
}

TEST(CudaErrorsTest, FreedMemoryThatACallHadBeforeIsRefused) {
  WithDriver({.keeps_addresses = true}, [](cuda::FakeControl* fake) {
    Cluster(Far()).Run([fake](annulus_comm_t* comm, int) {
      std::byte* const memory = fake->Allocate(0, kBytes);
      std::byte* const other = fake->Allocate(0, kBytes);
      EXPECT_EQ(SumInPlace(comm, memory), ANNULUS_OK) << LastMessage(comm);
      fake->Free(memory);
      ExpectRefused(comm, SumInPlace(comm, memory), ANNULUS_INVALID_ARGUMENT,
                    "sendbuf: it lies in memory of a GPU that was freed");
      // Small calls that repeat take a short cut, and parts of the buffer were in it, too.
      for (int i = 0; i < 3; ++i) {
        ExpectAlive(comm);
        ExpectRefused(comm, annulus_allreduce(comm, other, memory + 8, 1, ANNULUS_INT64, ANNULUS_SUM),
                      ANNULUS_INVALID_ARGUMENT, "recvbuf: it lies in memory of a GPU that was freed");
      }
      fake->Free(other);
    });
  });
}

// Where other memory has come since, it is that memory.
TEST(CudaErrorsTest, HostMemoryMayComeWhereAGpuHadMemory) {
  WithDriver({}, [](cuda::FakeControl* fake) {
    ClusterConfig config = Far();
    config.nranks = 1;
    Cluster(config).Run([fake](annulus_comm_t* comm, int) {
      std::byte* const memory = fake->Allocate(0, kBytes);
      EXPECT_EQ(SumInPlace(comm, memory), ANNULUS_OK) << LastMessage(comm);
      fake->Free(memory);
      void* const here =
          mmap(memory, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      if (here != memory) GTEST_SKIP() << "another thread was faster";
      EXPECT_EQ(SumInPlace(comm, here), ANNULUS_OK) << LastMessage(comm);
      munmap(here, kBytes);
    });
  });
}

TEST(CudaErrorsTest, ABufferThatIsLongerThanItsMemoryIsRefused) {
  WithDriver({}, [](cuda::FakeControl* fake) {
    Cluster(Far()).Run([fake](annulus_comm_t* comm, int) {
      // After its last byte comes a part of a page, which is nobody's.
      std::byte* const memory = fake->Allocate(0, kBytes);
      std::byte* const whole = fake->Allocate(0, kRanks * kBytes);
      ExpectRefused(comm, SumInPlace(comm, memory + 8), ANNULUS_INVALID_ARGUMENT,
                    "sendbuf: of its 320000 bytes only 319992 lie in memory of GPU 0");
      ExpectRefused(comm, annulus_allgather(comm, whole, memory, kCount, ANNULUS_INT64), ANNULUS_INVALID_ARGUMENT,
                    "recvbuf: of its 960000 bytes only 320000");
      EXPECT_EQ(annulus_allgather(comm, memory, whole, kCount, ANNULUS_INT64), ANNULUS_OK) << LastMessage(comm);
      ExpectAlive(comm);
      fake->Free(memory);
      fake->Free(whole);
    });
  });
}

// As the pieces that a program maps one behind the other.
TEST(CudaErrorsTest, ABufferMayLieInSeveralAllocationsWithoutAGap) {
  WithDriver({.allocation_bytes = 4096}, [](cuda::FakeControl* fake) {
    Cluster(Far()).Run([fake](annulus_comm_t* comm, int) { EXPECT_EQ(SumOnGpu(comm, fake), ANNULUS_OK); });
  });
}

// One rank's call is refused, and it gives up: so all learn what was wrong there.
TEST(CudaErrorsTest, TheOthersLearnWhyARankGaveUp) {
  WithDriver({}, [](cuda::FakeControl* fake) {
    for (const char* transport : {"shm", "tcp"}) {
      Cluster(Far(transport)).Run([fake](annulus_comm_t* comm, int rank) {
        std::byte* const memory = fake->Allocate(0, kBytes);
        const annulus_status_t status = SumInPlace(comm, memory, rank == 1 ? kCount + 1 : kCount);
        EXPECT_EQ(status, rank == 1 ? ANNULUS_INVALID_ARGUMENT : ANNULUS_ABORTED);
        if (rank == 1) annulus_comm_abort(comm, LastMessage(comm).c_str());
        const ErrorCopy verdict = LastError(comm);
        EXPECT_EQ(verdict.rank, 1);
        EXPECT_NE(verdict.message.find("lie in memory of GPU 0"), std::string::npos) << verdict.message;
        fake->Free(memory);
      });
    }
  });
}

// A failure of the driver while a call is under way, after `calls` of the function: of whichever rank meets it first.
// Some ranks' calls may have ended well then.
void ExpectOneVerdict(const char* function, cuda::Result result, annulus_status_t expected, size_t count = kCount,
                      int calls = 0, const char* algorithm = "auto") {
  SCOPED_TRACE(testing::Message() << function << ", count " << count << ", after " << calls << " calls");
  for (const char* transport : {"shm", "tcp"}) {
    WithDriver({}, [=](cuda::FakeControl* fake) {
      std::mutex mutex;
      std::set<std::string> messages;
      std::set<int> culprits;
      fake->Fail(function, result, calls);
      // Memory that cannot be pinned is allocated pinned instead.
      if (function == std::string("cuMemHostAlloc"))
        fake->Fail("cuMemHostRegister", cuda::Result::kNotSupported, cuda::FakeControl::kEveryCall);
      ClusterConfig config = Far(transport);
      config.algorithm = algorithm;
      Cluster(config).Run([&](annulus_comm_t* comm, int) {
        std::byte* const memory = fake->Allocate(0, kBytes);
        const annulus_status_t first = SumInPlace(comm, memory, count);
        EXPECT_TRUE(first == expected || (first == ANNULUS_OK && calls > 0)) << LastMessage(comm);
        EXPECT_EQ(SumInPlace(comm, memory, count), expected) << "later calls";
        const ErrorCopy verdict = LastError(comm);
        const std::lock_guard<std::mutex> lock(mutex);
        messages.insert(verdict.message);
        culprits.insert(verdict.rank);
        fake->Free(memory);
      });
      EXPECT_EQ(messages.size(), 1U) << "ranks disagree";
      EXPECT_EQ(culprits.size(), 1U);
      EXPECT_NE(messages.begin()->find(function), std::string::npos) << *messages.begin();
    });
  }
}

TEST(CudaErrorsTest, OutOfPinnedMemoryIsOneVerdict) {
  // By the ring each rank has work for its GPU; of one fold, one rank may do all.
  ExpectOneVerdict("cuMemHostAlloc", cuda::Result::kOutOfMemory, ANNULUS_OUT_OF_MEMORY, kCount, 0, "ring");
}

TEST(CudaErrorsTest, ALostContextIsOneVerdict) {
  for (const char* function : {"cuMemcpyAsync", "cuStreamWriteValue32"})
    ExpectOneVerdict(function, cuda::Result::kIllegalAddress, ANNULUS_SYSTEM_ERROR, kCount, 0, "ring");
}

// One fold of one rank is under way, or none.
TEST(CudaErrorsTest, AFoldThatFailsIsOneVerdict) {
  if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  ExpectOneVerdict("cuLaunchKernel", cuda::Result::kLaunchFailed, ANNULUS_SYSTEM_ERROR);
}

// For a small call there is one copy in each direction, and what tells of its end: of three ranks, the first three
// copies are those of the inputs, and the first three words tell that words can be written.
TEST(CudaErrorsTest, AContextThatIsLostInASmallCallIsOneVerdict) {
  constexpr size_t kSmall = 100;
  for (const int calls : {0, kRanks}) {
    ExpectOneVerdict("cuMemcpyAsync", cuda::Result::kIllegalAddress, ANNULUS_SYSTEM_ERROR, kSmall, calls);
    ExpectOneVerdict("cuStreamWriteValue32", cuda::Result::kLaunchFailed, ANNULUS_SYSTEM_ERROR, kSmall, kRanks + calls);
  }
}

// Staging memory is then like any other, and the copies go through what the queue has.
TEST(CudaErrorsTest, SmallCallsGoOnWhereNothingCanBePinned) {
  WithDriver({.most_pinned = 0}, [](cuda::FakeControl* fake) {
    Cluster(Far()).Run([fake](annulus_comm_t* comm, int) {
      for (const size_t count : {size_t{1}, size_t{100}, kCount}) {
        const Numbers ones(count, 1);
        Numbers sums(count);
        std::byte* const memory = fake->Allocate(0, kBytes);
        fake->Write(memory, ones.data(), count * sizeof ones[0]);
        EXPECT_EQ(SumInPlace(comm, memory, count), ANNULUS_OK) << LastMessage(comm);
        fake->Read(sums.data(), memory, count * sizeof ones[0]);
        EXPECT_TRUE(sums == Numbers(count, kRanks));
        fake->Free(memory);
      }
    });
  });
}

}  // namespace
}  // namespace annulus
