// The device kernels as the driver loads them: machine code for several GPUs and PTX for later ones, in one file.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <span>

namespace annulus::cuda {

// Empty when Annulus was built without a CUDA compiler.
std::span<const std::byte> KernelImage();

}  // namespace annulus::cuda
