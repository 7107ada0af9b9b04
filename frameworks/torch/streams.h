// Streams: where the calls on CUDA tensors go that the program does not wait for at once. They are PyTorch's own, from
// its pool: one for collectives, whose order is the same on all ranks, and one for the messages with each rank in each
// direction, which must not wait for each other. No two lanes are one stream, in the whole process, as long as the
// pool's last.
//
// Threads: any.
#pragma once

#include <annulus.h>
#include <c10/core/Stream.h>

#include <map>
#include <mutex>
#include <tuple>

namespace annulus_torch {

class Streams {
 public:
  Streams() = default;
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // That of such calls on the device.
  c10::Stream Of(c10::Device device, const annulus_call_t& call);

 private:
  using Key = std::tuple<c10::DeviceIndex, int32_t, int32_t>;  // Device, kind of messages or -1, their peer or -1.

  std::mutex mutex_;
  std::map<Key, c10::Stream> streams_;
};

}  // namespace annulus_torch
