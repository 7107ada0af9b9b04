// The loop of the host reducer over two sources, for one Highway target. Included once per target by each file that
// compiles kernels; the Elements that it takes are described in reducer_simd.h.

// Per-target include guard, as Highway asks for it.
#if defined(ANNULUS_REDUCER_LOOP_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ANNULUS_REDUCER_LOOP_H_
#undef ANNULUS_REDUCER_LOOP_H_
#else
#define ANNULUS_REDUCER_LOOP_H_
#endif

#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "collectives/reduce/reducer_kernels.h"
#include "collectives/reduce/reducer_simd.h"

HWY_BEFORE_NAMESPACE();
namespace annulus {
namespace HWY_NAMESPACE {

// Operand of the loop besides the sources: the divisor or the factor, in the form in which the element computes with
// it.
template <class Element, class Op>
auto MakeNumber(const Pass& pass) {
  if constexpr (std::is_same_v<Op, Scale>) {
    return Element::MakeFactor(pass.factor);
  } else {
    return Element::MakeDivisor(pass.divisor);
  }
}

// One vector's worth of elements: combine, divide if this is the last hop, store to one or two destinations.
template <class Element, class Op, bool kTwo, bool kDivide, class Number>
HWY_ATTR HWY_INLINE void Block(const Pass& pass, size_t at, const Number& number) {
  using Lane = typename Element::Lane;
  auto result = Element::Load(reinterpret_cast<const Lane*>(pass.left) + at);
  if constexpr (std::is_same_v<Op, Scale>) {
    result = Element::Multiply(result, number);
  } else {
    result = Element::template Combine<Op>(result, Element::Load(reinterpret_cast<const Lane*>(pass.right) + at));
  }
  if constexpr (kDivide) result = Element::Divide(result, number);
  Element::Store(result, reinterpret_cast<Lane*>(pass.dst[0]) + at);
  if constexpr (kTwo) Element::Store(result, reinterpret_cast<Lane*>(pass.dst[1]) + at);
}

// The last few elements go through the same code in padded buffers, so the bits do not depend on where a vector ends.
template <class Element, class Op, bool kDivide, class Number>
HWY_ATTR void Tail(const Pass& pass, size_t at, const Number& number) {
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
  Block<Element, Op, false, kDivide>(padded, 0, number);
  for (std::byte* dst : pass.dst) {
    if (dst != nullptr) std::memcpy(dst + offset, left, bytes);
  }
}

template <class Element, class Op, bool kTwo, bool kDivide>
HWY_ATTR void Loop(const Pass& pass) {
  const auto number = MakeNumber<Element, Op>(pass);
  const size_t lanes = Element::Lanes();
  size_t at = 0;
  // Four independent loads and stores in flight per turn.
  for (; at + 4 * lanes <= pass.count; at += 4 * lanes) {
    Block<Element, Op, kTwo, kDivide>(pass, at, number);
    Block<Element, Op, kTwo, kDivide>(pass, at + lanes, number);
    Block<Element, Op, kTwo, kDivide>(pass, at + 2 * lanes, number);
    Block<Element, Op, kTwo, kDivide>(pass, at + 3 * lanes, number);
  }
  for (; at + lanes <= pass.count; at += lanes) Block<Element, Op, kTwo, kDivide>(pass, at, number);
  if (at < pass.count) Tail<Element, Op, kDivide>(pass, at, number);
}

template <class Element, class Op, bool kDivide = false>
HWY_ATTR void ByForm(const Pass& pass) {
  return pass.dst[1] != nullptr ? Loop<Element, Op, true, kDivide>(pass) : Loop<Element, Op, false, kDivide>(pass);
}

// `Wrapping` adds and multiplies: the unsigned type for signed integers too, which gives the same bits and is compiled
// once for both. `Ordered` finds minimum and maximum.
template <class Element, class Wrapping = Element, class Ordered = Element>
HWY_ATTR void ByOp(const Pass& pass, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ByForm<Wrapping, Sum>(pass);
    case ReduceOp::kAvg:
      return pass.divisor > 1 ? ByForm<Element, Sum, true>(pass) : ByForm<Wrapping, Sum>(pass);
    case ReduceOp::kProd:
      return ByForm<Wrapping, Product>(pass);
    case ReduceOp::kMin:
      return ByForm<Ordered, Minimum>(pass);
    case ReduceOp::kMax:
      return ByForm<Ordered, Maximum>(pass);
    default:  // kScale.
      return Loop<Wrapping, Scale, false, false>(pass);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace annulus
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
