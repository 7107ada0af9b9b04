// CudaFixture: a CudaDomain on the stand-in for CUDA's driver, and operations whose operands lie anywhere.
//
// Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "collectives/cuda/cuda_domain.h"
#include "tests/collectives/reduce/reducer_oracle.h"
#include "tests/cuda/fake_driver/fake_cuda.h"

namespace annulus {

// Memory of some kind, freed with the object.
class CudaPlace {
 public:
  enum class Kind { kDevice, kSlot, kPageable };

  CudaPlace(Kind kind, size_t bytes, cuda::FakeControl* fake, CudaDomain* domain);
  ~CudaPlace();
  CudaPlace(const CudaPlace&) = delete;
  CudaPlace& operator=(const CudaPlace&) = delete;

  std::byte* data() const { return data_; }
  void Write(const Bytes& content);
  Bytes Read() const;

 private:
  const Kind kind_;
  const size_t bytes_;
  cuda::FakeControl* const fake_;
  CudaDomain* const domain_;
  Bytes pageable_;
  std::byte* data_ = nullptr;
};

class CudaFixture : public testing::Test {
 protected:
  using Kind = CudaPlace::Kind;
  using Ticket = DomainQueue::Ticket;

  void Start(const cuda::FakeOptions& options);
  void Stop();
  void TearDown() override;

  std::unique_ptr<CudaPlace> NewPlace(Kind kind, const Bytes& content);
  // Polls until an operation is done.
  void Wait(DomainQueue* queue, Ticket ticket);
  void Run(const SliceOp& op);

  // An operation on random data in random places, of which one is on the device; and whether the queue and the host
  // reducer agree about its results.
  void RunRandom(uint64_t seed);

  cuda::FakeControl* fake_ = nullptr;
  std::unique_ptr<CudaDomain> domain_;
  std::unique_ptr<DomainQueue> queue_;
};

}  // namespace annulus
