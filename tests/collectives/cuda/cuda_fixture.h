// CudaFixture: a CudaDomain on the stand-in for CUDA's driver, a queue, and places for operands.
//
// Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "collectives/cuda/cuda_domain.h"
#include "tests/cuda/cuda_test_device.h"
#include "tests/cuda/random_operations.h"

namespace annulus {

class CudaFixture : public testing::Test {
 protected:
  using Kind = DevicePlace::Kind;
  using Ticket = DomainQueue::Ticket;

  // Ends what was there before; everything must have been given back, and nothing been done wrong (CudaTestDevice).
  void Start(const cuda::FakeOptions& options) {
    Stop();
    device_ = std::make_unique<CudaTestDevice>(options);
    fake_ = device_->fake();
    domain_ = device_->domain();
    ASSERT_TRUE(domain_->OpenQueue(ReduceOn::kAuto, &queue_).ok());
  }
  void Stop() {
    queue_.reset();
    device_.reset();
  }
  void TearDown() override { Stop(); }

  std::unique_ptr<DevicePlace> NewPlace(Kind kind, const Bytes& content) {
    auto place = std::make_unique<DevicePlace>(kind, content.size(), device_.get());
    place->Write(content);
    return place;
  }
  void Run(const SliceOp& op) {
    const Status status = RunToStatus(queue_.get(), op);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  void Wait(DomainQueue* queue, Ticket ticket) {
    bool done = false;
    while (!done) {
      const Status status = queue->Poll(ticket, &done);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
  }

  cuda::FakeControl* fake_ = nullptr;
  MemoryDomain* domain_ = nullptr;
  std::unique_ptr<CudaTestDevice> device_;
  std::unique_ptr<DomainQueue> queue_;
};

}  // namespace annulus
