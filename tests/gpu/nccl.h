// Nccl: one rank of a communicator of NVIDIA's NCCL, opened at run time, to be measured beside Annulus.
//
// Threads: one.
#pragma once

#include <annulus.h>

#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "cuda_kernels/driver/driver.h"
#include "tests/gpu/nccl_functions.h"
#include "tests/gpu/real_device.h"

namespace annulus {

class Nccl {
 public:
  // How ranks share a GPU, which NCCL refuses by itself.
  enum class Sharing {
    kSockets,  // Each claims to be on a host of its own, so that data goes through the CPU and sockets of this host.
    kShared,   // As NCCL itself allows since 2.30, by NCCL_MULTI_RANK_GPU_ENABLE.
  };

  // Opens `library` and makes a communicator of the ranks of `comm`, over which they meet. Sets NCCL's variables, so
  // the process makes one kind only. `device` outlives it. Errors: kUnsupported: there is no such library, or it
  // refuses.
  static Status Open(const std::string& library, Sharing sharing, annulus_comm_t* comm, RealDevice* device,
                     std::unique_ptr<Nccl>* nccl);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // 23000 for 2.30.0.
  int version() const { return version_; }
  cuda::Stream stream() const { return stream_; }

  // Puts a sum of float32 into the stream.
  Status Allreduce(const std::byte* in, std::byte* out, size_t count);
  // Waits for what the stream has.
  Status Wait();

 private:
  explicit Nccl(RealDevice* device) : device_(device) {}
  Status Load(const std::string& library);
  Status Join(annulus_comm_t* comm);
  Status ToStatus(int result, const char* function) const;

  RealDevice* const device_;
  NcclFunctions functions_;
  int version_ = 0;
  cuda::Stream stream_ = nullptr;
  NcclComm comm_ = nullptr;
};

}  // namespace annulus
