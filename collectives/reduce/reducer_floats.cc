// The host reducer for floats of 16 bits and more, compiled once per instruction set.
#include "collectives/reduce/reducer_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reduce/reducer_floats.cc"
#include <hwy/foreach_target.h>
// After foreach_target: these are compiled anew for each target.
#include <hwy/highway.h>

#include "collectives/reduce/reducer.h"
#include "collectives/reduce/reducer_loop.h"
#include "collectives/reduce/reducer_simd.h"

HWY_BEFORE_NAMESPACE();
namespace annulus {
namespace HWY_NAMESPACE {

HWY_ATTR void RunFloats(const Pass& pass, DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kFloat16:
      return ByOp<NarrowElement<Half>>(pass, op);
    case DataType::kBFloat16:
      return ByOp<BrainElement>(pass, op);
    case DataType::kFloat32:
      return ByOp<FloatElement<float>>(pass, op);
    case DataType::kFloat64:
      return ByOp<FloatElement<double>>(pass, op);
    default:
      return;
  }
}

const char* Target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace annulus
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace annulus {

namespace {
HWY_EXPORT(RunFloats);
HWY_EXPORT(Target);
}  // namespace

void CombineFloats(const Pass& pass, DataType type, ReduceOp op) { HWY_DYNAMIC_DISPATCH(RunFloats)(pass, type, op); }

const char* HostReducerTarget() { return HWY_DYNAMIC_DISPATCH(Target)(); }

}  // namespace annulus
#endif  // HWY_ONCE
