// Buffers: the send and receive memory of a measurement, filled, poisoned and checked. Those on a GPU have images in
// host memory, which are filled and checked in their place.
//
// Threads: one thread at a time. Check is collective: all ranks call it in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"
#include "bench/perf/perf_collective.h"
#include "bench/perf/perf_gpu.h"
#include "bench/perf/perf_group.h"

namespace annulus::perf {

// Memory for other work of the run, so that it meets the same caches and pages; on a GPU as well, if the run is there.
struct Arena {
  const uint8_t* input;
  uint8_t* output;
  size_t bytes;
  Gpu* gpu = nullptr;
  const uint8_t* gpu_input = nullptr;
  uint8_t* gpu_output = nullptr;
};

enum class Place { kOut, kIn };  // Out of place: two buffers; in place: one.

struct FreeMemory {
  bool registered = false;
  Gpu* gpu = nullptr;  // Whose memory it is.
  void operator()(uint8_t* memory) const;
};

class Buffers {
 public:
  // Room for `copies` calls of up to `bytes` each, in flight at once; from annulus_mem_alloc if `registered`, on `gpu`,
  // which outlives them, if that is not null.
  static Status Create(size_t bytes, int copies, bool registered, Gpu* gpu, Buffers* buffers);

  // The arguments of call number `copy`, as annulus.h wants them for `place`.
  void* Send(const CallSpec& spec, Place place, int rank, int copy) const;
  void* Recv(const CallSpec& spec, Place place, int rank, int copy) const;

  // The first `bytes` of both buffers, which may be those of several calls; they hold nothing that outlasts a check.
  Arena arena(size_t bytes) const {
    return {input_.get(), output_.get(), bytes, gpu_, gpu_input_.get(), gpu_output_.get()};
  }

  // Calls whose results are to be checked.
  struct Checked {
    const CallSpec& spec;
    Place place;
    int copies;                           // Number of calls.
    const std::function<Status()>& make;  // Makes them.
  };
  // Makes the calls on fresh inputs, and adds to *wrong, over all ranks, the elements that are not what they must be:
  // wrong results, changed inputs, anything written where nothing should be. Spoils `corrupt` results of the first call
  // on rank 0 first. The inputs are those of `seed` and, for further calls, of the numbers that follow it.
  Status Check(const Checked& calls, Group& group, uint64_t seed, int corrupt, int64_t* wrong);

 private:
  using Memory = std::unique_ptr<uint8_t, FreeMemory>;

  // In the images: those of the GPU, or the buffers themselves.
  uint8_t* ImageOfSend(const CallSpec& spec, Place place, int rank, int copy) const;
  uint8_t* ImageOfRecv(const CallSpec& spec, Place place, int rank, int copy) const;
  // Where the calls find what an image shows.
  uint8_t* Shown(uint8_t* image) const;
  // Writes the inputs of call number `copy`, and poison wherever a result should come or nothing may be written.
  void Prepare(const CallSpec& spec, Place place, const Group& group, uint64_t seed, int copy);
  // Between the images of that call and the GPU, if there is one.
  Status Upload(const CallSpec& spec, int nranks, int copy);
  Status Download(const CallSpec& spec, int nranks, int copy);
  int64_t CountWrong(const CallSpec& spec, Place place, const Group& group, uint64_t seed, int copy) const;

  Memory input_;
  Memory output_;
  Gpu* gpu_ = nullptr;
  Memory gpu_input_;  // Null without a GPU.
  Memory gpu_output_;
  size_t bytes_ = 0;   // Size of each buffer.
  size_t stride_ = 0;  // From one call's buffer to the next one's.
};

}  // namespace annulus::perf
