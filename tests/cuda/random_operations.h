// Random operations on a device: every type, operation and form, with operands in any memory and at any alignment,
// against the host reducer, bit for bit. For the stand-in and for real GPUs alike.
//
// Threads: plain functions; those of a device in one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "collectives/reduce/domain_queue.h"
#include "tests/collectives/reduce/reducer_oracle.h"
#include "tests/device/test_device.h"

namespace annulus {

// Memory of some kind, freed with the object.
class DevicePlace {
 public:
  enum class Kind { kDevice, kSlot, kPageable };

  DevicePlace(Kind kind, size_t bytes, TestDevice* device);
  ~DevicePlace();
  DevicePlace(const DevicePlace&) = delete;
  DevicePlace& operator=(const DevicePlace&) = delete;

  std::byte* data() const { return data_; }
  void Write(const Bytes& content);
  Bytes Read() const;

 private:
  const Kind kind_;
  const size_t bytes_;
  TestDevice* const device_;
  Bytes pageable_;
  std::byte* data_ = nullptr;
};

// Submits an operation and polls until it is done.
Status RunToStatus(DomainQueue* queue, const SliceOp& op);

// Runs the operation of this seed. "" when all results are right; otherwise what is wrong.
std::string RunRandomOperation(uint64_t seed, TestDevice* device, DomainQueue* queue);

// Runs `op` on all pairs of `a` and `b`, two arrays of elements on the device; "" as above.
std::string RunPairs(DataType type, ReduceOp op, uint32_t divisor, const Bytes& a, const Bytes& b, TestDevice* device,
                     DomainQueue* queue);

}  // namespace annulus
