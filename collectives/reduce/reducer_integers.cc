// The host reducer for integers of 16 to 64 bits, compiled once per instruction set.
#include "collectives/reduce/reducer_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reduce/reducer_integers.cc"
#include <hwy/foreach_target.h>
// After foreach_target: these are compiled anew for each target.
#include <hwy/highway.h>

#include "collectives/reduce/reducer_loop.h"
#include "collectives/reduce/reducer_simd.h"

HWY_BEFORE_NAMESPACE();
namespace annulus {
namespace HWY_NAMESPACE {

HWY_ATTR void RunIntegers(const Pass& pass, DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kInt16:
      return ByOp<IntegerElement<int16_t>, IntegerElement<uint16_t>>(pass, op);
    case DataType::kUint16:
      return ByOp<IntegerElement<uint16_t>, IntegerElement<uint16_t>>(pass, op);
    case DataType::kInt32:
      return ByOp<IntegerElement<int32_t>, IntegerElement<uint32_t>>(pass, op);
    case DataType::kUint32:
      return ByOp<IntegerElement<uint32_t>, IntegerElement<uint32_t>>(pass, op);
    case DataType::kInt64:
      return ByOp<IntegerElement<int64_t>, IntegerElement<uint64_t>>(pass, op);
    case DataType::kUint64:
      return ByOp<IntegerElement<uint64_t>, IntegerElement<uint64_t>>(pass, op);
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
HWY_EXPORT(RunIntegers);
}  // namespace

void CombineIntegers(const Pass& pass, DataType type, ReduceOp op) {
  HWY_DYNAMIC_DISPATCH(RunIntegers)(pass, type, op);
}

}  // namespace annulus
#endif  // HWY_ONCE
