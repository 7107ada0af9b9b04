// The places of calls in graphs: who has them, and how much memory they pin, as threads take them at the same time.
#include <memory>
#include <thread>
#include <vector>

#include "collectives/cuda/cuda_device.h"
#include "collectives/cuda/cuda_domain.h"
#include "collectives/cuda/graphs/cuda_graph_calls.h"
#include "collectives/reduce/graph_call.h"
#include "tests/collectives/cuda/cuda_fixture.h"

namespace annulus {
namespace {

class CudaGraphPlacesTest : public CudaFixture {
 protected:
  static constexpr size_t kMost = size_t{1} << 20;

  void SetUp() override {
    Start({});
    ASSERT_TRUE(static_cast<CudaDomain*>(domain_)->Use(0, &gpu_).ok());
  }
  void TearDown() override {
    places_.TakeAll();
    CudaFixture::TearDown();
  }
  CudaGraphCall* Acquire(size_t bytes = 100) {
    CudaGraphCall* call = nullptr;
    const Status status = places_.Acquire(*gpu_, bytes, kMost, bell_, &call);
    EXPECT_TRUE(status.ok() || status.code() == Code::kOutOfMemory) << status.ToString();
    return status.ok() ? call : nullptr;
  }

  const CudaDevice* gpu_ = nullptr;
  CudaGraphCalls places_;
  std::shared_ptr<GraphBell> bell_ = std::make_shared<GraphBell>();
};

// Whoever has it gives it back once: as soon as it was given back it may be another capture's.
TEST_F(CudaGraphPlacesTest, APlaceThatCouldNotBeRecordedStaysWithWhoHasIt) {
  CudaGraphCall* const first = Acquire();
  fake_->Fail("cuUserObjectCreate", cuda::Result::kOutOfMemory, 0);
  EXPECT_FALSE(places_.Record(nullptr, nullptr, first).ok());
  CudaGraphCall* const second = Acquire();
  EXPECT_NE(second, first);
  places_.Recycle(first);
  EXPECT_EQ(Acquire(), first);
  const CudaGraphCall* const third = Acquire();
  EXPECT_NE(third, first);
  EXPECT_NE(third, second);
}

TEST_F(CudaGraphPlacesTest, ThreadsThatPinAtATimeStayWithinTheLimit) {
  constexpr int kThreads = 8;
  constexpr size_t kBytes = kMost / 4;
  std::vector<CudaGraphCall*> found(kThreads);
  std::vector<std::thread> threads;
  for (CudaGraphCall*& each : found) threads.emplace_back([&] { each = Acquire(kBytes); });
  for (std::thread& each : threads) each.join();
  EXPECT_LE(places_.MemoryBytes(), kMost);
  int count = 0;
  for (const CudaGraphCall* const each : found) count += each != nullptr ? 1 : 0;
  EXPECT_EQ(count, 3) << "with their words";
}

}  // namespace
}  // namespace annulus
