// Compiled once per instruction set by Highway.
#include "bench/peers/exchange_kernels.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/peers/exchange_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target: compiled anew for each target.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace annulus::peers {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

template <bool kStream>
HWY_ATTR HWY_INLINE void Put(hn::Vec<D> value, float* to) {
  if constexpr (kStream) {
    hn::Stream(value, D(), to);
  } else {
    hn::StoreU(value, D(), to);
  }
}

template <bool kStreamOutput, bool kStreamSlot>
HWY_ATTR void FoldLoop(const float* own, const float* const* others, int num_others, float* output, float* slot,
                       size_t count) {
  const size_t lanes = hn::Lanes(D());
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    auto sum = hn::LoadU(D(), own + i);
    for (int other = 0; other < num_others; ++other) sum = hn::Add(sum, hn::LoadU(D(), others[other] + i));
    Put<kStreamOutput>(sum, output + i);
    if (slot != nullptr) Put<kStreamSlot>(sum, slot + i);
  }
  for (; i < count; ++i) {
    float sum = own[i];
    for (int other = 0; other < num_others; ++other) sum += others[other][i];
    output[i] = sum;
    if (slot != nullptr) slot[i] = sum;
  }
}

HWY_ATTR void FoldTarget(const float* own, const float* const* others, int num_others, float* output, float* slot,
                         size_t count, Streaming streaming) {
  const auto loop = streaming.output ? (streaming.slot ? FoldLoop<true, true> : FoldLoop<true, false>)
                                     : (streaming.slot ? FoldLoop<false, true> : FoldLoop<false, false>);
  loop(own, others, num_others, output, slot, count);
}

template <bool kStream>
HWY_ATTR void MoveLoop(const float* from, float* to, size_t count) {
  const size_t lanes = hn::Lanes(D());
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto a = hn::LoadU(D(), from + i), b = hn::LoadU(D(), from + i + lanes);
    const auto c = hn::LoadU(D(), from + i + 2 * lanes), d = hn::LoadU(D(), from + i + 3 * lanes);
    Put<kStream>(a, to + i);
    Put<kStream>(b, to + i + lanes);
    Put<kStream>(c, to + i + 2 * lanes);
    Put<kStream>(d, to + i + 3 * lanes);
  }
  for (; i < count; ++i) to[i] = from[i];
}

HWY_ATTR void MoveTarget(const float* from, float* to, size_t count, bool stream) {
  stream ? MoveLoop<true>(from, to, count) : MoveLoop<false>(from, to, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace annulus::peers
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace annulus::peers {

namespace {
HWY_EXPORT(FoldTarget);
HWY_EXPORT(MoveTarget);
}  // namespace

void Fold(const float* own, const float* const* others, int num_others, float* output, float* slot, size_t count,
          Streaming streaming) {
  HWY_DYNAMIC_DISPATCH(FoldTarget)(own, others, num_others, output, slot, count, streaming);
}

void Move(const float* from, float* to, size_t count, bool stream) {
  HWY_DYNAMIC_DISPATCH(MoveTarget)(from, to, count, stream);
}

void FinishStreaming() { hwy::FlushStream(); }

}  // namespace annulus::peers
#endif  // HWY_ONCE
