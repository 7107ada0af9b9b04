// The device kernels: one for each element type and operation, named annulus_TYPE_OP (HasKernel in kernel_names.h). An
// average is a sum that is divided; a copy is a sum of one source. Bits are combined as bytes.
//
// Grid: x is the block's number among those of its slice, y the slice's number in the batch.
// Threads: those of the device.
#include "cuda_kernels/reduce_kernel.h"

namespace annulus::cuda {
namespace {

template <class Element, class Op>
__device__ __forceinline__ void RunBlock(const KernelBatch& batch) {
  const KernelSlice& slice = batch.slices[blockIdx.y];
  // A list in host memory is read once, by all threads together: each access there takes a microsecond.
  __shared__ const std::byte* list[kMostListed];
  __shared__ std::byte* more[kMostListed];
  const bool is_listed = slice.num_sources > 2;
  if (is_listed || slice.num_more > 0) {
    const auto place = static_cast<int>(threadIdx.x);
    if (is_listed && place < slice.num_sources) list[place] = slice.many[place];
    if (place < slice.num_more) more[place] = slice.more[place];
    __syncthreads();
  }
  const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  SliceThread<Element, Op>(slice, is_listed ? list : slice.src, more, thread, threads).Run();
  __syncthreads();
  if (threadIdx.x != 0) return;
  // The results of the whole block come before what follows, for the host too.
  __threadfence_system();
  if (atomicAdd(slice.finished_blocks, 1) + 1 < gridDim.x) return;
  *slice.finished_blocks = 0;
  __threadfence_system();
  *static_cast<volatile uint32_t*>(slice.done) = slice.done_value;
}

}  // namespace
}  // namespace annulus::cuda

#define ANNULUS_KERNEL(TYPE, NAME, OP, OP_NAME)                                                  \
  extern "C" __global__ void __launch_bounds__(annulus::cuda::kThreadsPerBlock, 1)               \
      annulus_##NAME##_##OP_NAME(const __grid_constant__ annulus::cuda::KernelBatch batch) {     \
    using annulus::DataType;                                                                     \
    annulus::cuda::RunBlock<annulus::cuda::ElementOf<DataType::TYPE>, annulus::cuda::OP>(batch); \
  }
#define ANNULUS_ELEMENT_TYPE(Name, name, ...)  \
  ANNULUS_KERNEL(k##Name, name, Sum, sum)      \
  ANNULUS_KERNEL(k##Name, name, Product, prod) \
  ANNULUS_KERNEL(k##Name, name, Minimum, min)  \
  ANNULUS_KERNEL(k##Name, name, Maximum, max)
#include "cuda_kernels/reduce_types.inc"
#undef ANNULUS_ELEMENT_TYPE
ANNULUS_KERNEL(kUint8, uint8, And, band)
ANNULUS_KERNEL(kUint8, uint8, Or, bor)
ANNULUS_KERNEL(kUint8, uint8, Xor, bxor)
ANNULUS_KERNEL(kComplex64, complex64, Product, prod)
ANNULUS_KERNEL(kComplex128, complex128, Product, prod)
