// The table of kernels by name, and the loop over their threads.
#include "cuda_kernels/reduce_on_host.h"

#include <map>
#include <string>

#include "cuda_kernels/kernel_names.h"

namespace annulus::cuda {
namespace {

using Kernel = void (*)(const KernelSlice& slice, uint64_t threads);
using Kernels = std::map<std::string, Kernel, std::less<>>;

template <class Element, class Op>
void RunThreads(const KernelSlice& slice, uint64_t threads) {
  const std::byte* const* const sources = slice.num_sources > 2 ? slice.many : slice.src;
  for (uint64_t thread = 0; thread < threads; ++thread)
    SliceThread<Element, Op>(slice, sources, slice.more, thread, threads).Run();
}

template <DataType kType, class Op>
void Add(Kernels* kernels, ReduceOp op) {
  (*kernels)[KernelName(kType, op)] = &RunThreads<ElementOf<kType>, Op>;
}

template <DataType kType>
void AddType(Kernels* kernels) {
  Add<kType, Sum>(kernels, ReduceOp::kSum);
  Add<kType, Product>(kernels, ReduceOp::kProd);
  Add<kType, Minimum>(kernels, ReduceOp::kMin);
  Add<kType, Maximum>(kernels, ReduceOp::kMax);
}

Kernels AllKernels() {
  Kernels kernels;
#define ANNULUS_ELEMENT_TYPE(Name, ...) AddType<DataType::k##Name>(&kernels);
#include "cuda_kernels/reduce_types.inc"
#undef ANNULUS_ELEMENT_TYPE
  Add<DataType::kUint8, And>(&kernels, ReduceOp::kBand);
  Add<DataType::kUint8, Or>(&kernels, ReduceOp::kBor);
  Add<DataType::kUint8, Xor>(&kernels, ReduceOp::kBxor);
  Add<DataType::kComplex64, Product>(&kernels, ReduceOp::kProd);
  Add<DataType::kComplex128, Product>(&kernels, ReduceOp::kProd);
  return kernels;
}

}  // namespace

bool RunSliceOnHost(std::string_view kernel, const KernelSlice& slice, unsigned blocks, unsigned threads_per_block) {
  static const Kernels kernels = AllKernels();
  const auto found = kernels.find(kernel);
  if (found == kernels.end()) return false;
  found->second(slice, uint64_t{blocks} * threads_per_block);
  if (slice.done != nullptr) __atomic_store_n(slice.done, slice.done_value, __ATOMIC_RELEASE);
  return true;
}

}  // namespace annulus::cuda
