// RunOnHost, compiled once per instruction set; the best one that the machine has is chosen at the first call.

#include "collectives/reducer.h"

#include <algorithm>
#include <cstring>

#include "collectives/reducer_float_env.h"

// x86 machines without AVX2 (before 2013) get the portable code: each further target would cost every build as much
// again.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reducer.cc"
#include <hwy/foreach_target.h>
// After foreach_target: these are compiled anew for each target.
#include <hwy/highway.h>

#include "collectives/reducer_simd.h"

HWY_BEFORE_NAMESPACE();
namespace annulus {
namespace HWY_NAMESPACE {

// What one pass over two sources works on.
struct Pass {
  std::byte* dst[2];
  const std::byte* left;
  const std::byte* right;
  size_t count;
  uint32_t divisor;
};

// One vector's worth of elements: combine, divide if this is the last hop, store to one or two destinations.
template <class Element, class Op, bool kTwo, bool kDivide>
HWY_ATTR HWY_INLINE void Block(const Pass& pass, size_t at, const typename Element::Divisor& divisor) {
  using Lane = typename Element::Lane;
  const Lane* left = reinterpret_cast<const Lane*>(pass.left) + at;
  const Lane* right = reinterpret_cast<const Lane*>(pass.right) + at;
  auto result = Element::template Combine<Op>(Element::Load(left), Element::Load(right));
  if constexpr (kDivide) result = Element::Divide(result, divisor);
  Element::Store(result, reinterpret_cast<Lane*>(pass.dst[0]) + at);
  if constexpr (kTwo) Element::Store(result, reinterpret_cast<Lane*>(pass.dst[1]) + at);
}

// The last few elements go through the same code in padded buffers, so the bits do not depend on where a vector ends.
template <class Element, class Op, bool kDivide>
HWY_ATTR void Tail(const Pass& pass, size_t at, const typename Element::Divisor& divisor) {
  using Lane = typename Element::Lane;
  const size_t bytes = (pass.count - at) * sizeof(Lane);
  const size_t offset = at * sizeof(Lane);
  HWY_ALIGN Lane left[Element::kMaxLanes] = {};
  HWY_ALIGN Lane right[Element::kMaxLanes] = {};
  std::memcpy(left, pass.left + offset, bytes);
  std::memcpy(right, pass.right + offset, bytes);
  Pass padded = pass;
  padded.left = reinterpret_cast<const std::byte*>(left);
  padded.right = reinterpret_cast<const std::byte*>(right);
  padded.dst[0] = reinterpret_cast<std::byte*>(left);
  Block<Element, Op, false, kDivide>(padded, 0, divisor);
  for (std::byte* dst : pass.dst) {
    if (dst != nullptr) std::memcpy(dst + offset, left, bytes);
  }
}

template <class Element, class Op, bool kTwo, bool kDivide>
HWY_ATTR void Loop(const Pass& pass) {
  const typename Element::Divisor divisor = Element::MakeDivisor(pass.divisor);
  const size_t lanes = Element::Lanes();
  size_t at = 0;
  // Four independent loads and stores in flight per turn.
  for (; at + 4 * lanes <= pass.count; at += 4 * lanes) {
    Block<Element, Op, kTwo, kDivide>(pass, at, divisor);
    Block<Element, Op, kTwo, kDivide>(pass, at + lanes, divisor);
    Block<Element, Op, kTwo, kDivide>(pass, at + 2 * lanes, divisor);
    Block<Element, Op, kTwo, kDivide>(pass, at + 3 * lanes, divisor);
  }
  for (; at + lanes <= pass.count; at += lanes) Block<Element, Op, kTwo, kDivide>(pass, at, divisor);
  if (at < pass.count) Tail<Element, Op, kDivide>(pass, at, divisor);
}

template <class Element, class Op>
HWY_ATTR void ByForm(const Pass& pass) {
  const bool two = pass.dst[1] != nullptr;
  if (pass.divisor > 1) return two ? Loop<Element, Op, true, true>(pass) : Loop<Element, Op, false, true>(pass);
  return two ? Loop<Element, Op, true, false>(pass) : Loop<Element, Op, false, false>(pass);
}

template <class Element>
HWY_ATTR void ByOp(const Pass& pass, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return ByForm<Element, Sum>(pass);
    case ReduceOp::kProd:
      return ByForm<Element, Product>(pass);
    case ReduceOp::kMin:
      return ByForm<Element, Minimum>(pass);
    case ReduceOp::kMax:
      return ByForm<Element, Maximum>(pass);
  }
}

HWY_ATTR void CombineTwo(const Pass& pass, DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kInt32:
      return ByOp<IntegerElement<int32_t>>(pass, op);
    case DataType::kInt64:
      return ByOp<IntegerElement<int64_t>>(pass, op);
    case DataType::kFloat16:
      return ByOp<NarrowElement<Half>>(pass, op);
    case DataType::kBFloat16:
      return ByOp<NarrowElement<Brain>>(pass, op);
    case DataType::kFloat32:
      return ByOp<FloatElement<float>>(pass, op);
    case DataType::kFloat64:
      return ByOp<FloatElement<double>>(pass, op);
  }
}

// Folds more than two sources block by block, so that partial results stay in the first-level cache.
HWY_ATTR void CombineMany(const SliceOp& op) {
  constexpr size_t kBlockBytes = 4096;
  HWY_ALIGN std::byte partial[kBlockBytes];
  const size_t element = TypeBytes(op.type);
  const size_t block = kBlockBytes / element;
  for (size_t at = 0; at < op.count; at += block) {
    const size_t count = std::min(block, op.count - at);
    const size_t offset = at * element;
    Pass pass{{partial, nullptr}, op.src[0] + offset, op.src[1] + offset, count, 0};
    CombineTwo(pass, op.type, op.op);
    pass.left = partial;
    for (int i = 2; i < op.num_sources; ++i) {
      pass.right = op.src[i] + offset;
      if (i == op.num_sources - 1) {
        pass.dst[0] = op.dst[0] + offset;
        pass.dst[1] = op.dst[1] != nullptr ? op.dst[1] + offset : nullptr;
        pass.divisor = op.divisor;
      }
      CombineTwo(pass, op.type, op.op);
    }
  }
}

HWY_ATTR void Run(const SliceOp& op) {
  if (op.num_sources > 2) return CombineMany(op);
  CombineTwo({{op.dst[0], op.dst[1]}, op.inline_src[0], op.inline_src[1], op.count, op.divisor}, op.type, op.op);
}

const char* Target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace annulus
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace annulus {
namespace {

HWY_EXPORT(Run);
HWY_EXPORT(Target);

// Two destinations are filled block by block, so that the source is read from memory once.
void Copy(const SliceOp& op) {
  constexpr size_t kBlockBytes = 16 * 1024;
  const size_t bytes = op.count * TypeBytes(op.type);
  if (op.dst[1] == nullptr) {
    if (op.dst[0] != op.inline_src[0]) std::memcpy(op.dst[0], op.inline_src[0], bytes);
    return;
  }
  for (size_t at = 0; at < bytes; at += kBlockBytes) {
    const size_t block = std::min(kBlockBytes, bytes - at);
    for (std::byte* dst : op.dst) {
      if (dst != op.inline_src[0]) std::memcpy(dst + at, op.inline_src[0] + at, block);
    }
  }
}

}  // namespace

void RunOnHost(const SliceOp& op) {
  if (op.count == 0) return;
  if (op.num_sources == 1) return Copy(op);
  const DefaultFloatEnv env;
  HWY_DYNAMIC_DISPATCH(Run)(op);
}

const char* HostReducerTarget() { return HWY_DYNAMIC_DISPATCH(Target)(); }

}  // namespace annulus
#endif  // HWY_ONCE
