// The host reducer for floats of 8 bits, compiled once per instruction set.
#include "collectives/reduce/reducer_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reduce/reducer_float8.cc"
#include <hwy/foreach_target.h>
// After foreach_target: these are compiled anew for each target.
#include <hwy/highway.h>

#include "collectives/reduce/reducer_float8.h"
#include "collectives/reduce/reducer_loop.h"

HWY_BEFORE_NAMESPACE();
namespace annulus {
namespace HWY_NAMESPACE {

HWY_ATTR void RunFloat8s(const Pass& pass, DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kFloat8E4M3:
      return ByOp<Float8Element<E4M3>, Float8Element<E4M3>, Float8Order<E4M3>>(pass, op);
    case DataType::kFloat8E5M2:
      return ByOp<Float8Element<E5M2>, Float8Element<E5M2>, Float8Order<E5M2>>(pass, op);
    default:
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace annulus
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace annulus {

namespace {
HWY_EXPORT(RunFloat8s);
}  // namespace

void CombineFloat8s(const Pass& pass, DataType type, ReduceOp op) { HWY_DYNAMIC_DISPATCH(RunFloat8s)(pass, type, op); }

}  // namespace annulus
#endif  // HWY_ONCE
