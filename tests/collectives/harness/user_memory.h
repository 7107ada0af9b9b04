// UserMemory: where the buffers of a test's ranks lie: in host memory, or on a device without hardware that the whole
// process shares, as its ranks would share a GPU.
//
// Threads: any; a UserBytes belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tests/collectives/harness/oracle.h"
#include "tests/device/test_device.h"

namespace annulus {

// A buffer; freed with the object.
class UserBytes {
 public:
  // On `device`; null: in host memory.
  UserBytes(TestDevice* device, const Bytes& content);
  ~UserBytes();
  UserBytes(UserBytes&& other) noexcept;
  UserBytes& operator=(UserBytes&&) = delete;

  std::byte* data() const { return data_; }
  // The content, from `offset` on.
  Bytes Read(size_t offset, size_t bytes) const;
  Bytes Read() const { return Read(0, bytes_); }

 private:
  TestDevice* device_;
  Bytes host_;
  std::byte* data_;
  size_t bytes_;
};

class UserMemory {
 public:
  // "host"; "sim": all buffers are on a device whose work is found by polling; "sim_wakes": on one that wakes ranks;
  // "cuda": on CUDA's domain over the stand-in for its driver. "..._in", "..._out": inputs or outputs only. Other
  // endings are the cluster's. No communicator may exist, nor for cuda another such object.
  explicit UserMemory(const std::string& kind);
  // No communicator may exist.
  ~UserMemory();
  UserMemory(const UserMemory&) = delete;
  UserMemory& operator=(const UserMemory&) = delete;

  UserBytes Input(const Bytes& content) const { return UserBytes(inputs_ ? device_.get() : nullptr, content); }
  UserBytes Output(const Bytes& content) const { return UserBytes(outputs_ ? device_.get() : nullptr, content); }
  // Null when all is host memory.
  TestDevice* device() const { return device_.get(); }

 private:
  std::unique_ptr<TestDevice> device_;
  bool inputs_ = false;
  bool outputs_ = false;
};

}  // namespace annulus
