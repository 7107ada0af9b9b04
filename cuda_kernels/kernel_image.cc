#include "cuda_kernels/kernel_image.h"

// Both from the assembler source that the rule embedded_file writes (third_party/cuda).
extern "C" const std::byte annulus_kernel_image[];
extern "C" const std::byte annulus_kernel_image_end[];

namespace annulus::cuda {

std::span<const std::byte> KernelImage() { return {annulus_kernel_image, annulus_kernel_image_end}; }

}  // namespace annulus::cuda
