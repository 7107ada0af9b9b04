// What differs between versions of PyTorch, from 2.11 on.
//
// Threads: plain functions.
#pragma once

#include <c10/core/Stream.h>
#include <torch/version.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace annulus_torch {

// The factor of PREMUL_SUM.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
#else
using PreMulSumSupplement = c10d::PreMulSumSupplement;
#endif

// Asks CUDA's driver. False where there is none.
bool IsCapturedByDriver(void* stream);

// Whether the calling thread's current stream of CUDA is being captured. Does not start CUDA in a thread that has not
// used it.
bool IsCapturingHere();

// Whether the stream is being captured into a CUDA graph. `guard`: that of the stream's device, which can tell in newer
// versions.
template <class Guard>
bool IsCapturing(const Guard& guard, const c10::Stream& stream) {
  // The default stream never is. To ask for it is an error of CUDA's while some other streams are.
  if (stream == guard.getDefaultStream(stream.device())) return false;
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return IsCapturedByDriver(guard.getStreamNativeHandle(stream));
  }
}

}  // namespace annulus_torch
