// The host reducer for integers of 8 bits, and for the bits of all types, compiled once per instruction set.
#include "collectives/reduce/reducer_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reduce/reducer_bytes.cc"
#include <hwy/foreach_target.h>
// After foreach_target: these are compiled anew for each target.
#include <hwy/highway.h>

#include "collectives/reduce/reducer_bytes.h"
#include "collectives/reduce/reducer_loop.h"

HWY_BEFORE_NAMESPACE();
namespace annulus {
namespace HWY_NAMESPACE {

HWY_ATTR void RunBytes(const Pass& pass, DataType type, ReduceOp op) {
  if (op == ReduceOp::kBand) return ByForm<ByteElement<uint8_t>, BitAnd>(pass);
  if (op == ReduceOp::kBor) return ByForm<ByteElement<uint8_t>, BitOr>(pass);
  if (op == ReduceOp::kBxor) return ByForm<ByteElement<uint8_t>, BitXor>(pass);
  switch (type) {
    case DataType::kInt8:
      return ByOp<ByteElement<int8_t>, ByteElement<uint8_t>>(pass, op);
    case DataType::kUint8:
      return ByOp<ByteElement<uint8_t>, ByteElement<uint8_t>>(pass, op);
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
HWY_EXPORT(RunBytes);
}  // namespace

void CombineBytes(const Pass& pass, DataType type, ReduceOp op) { HWY_DYNAMIC_DISPATCH(RunBytes)(pass, type, op); }

}  // namespace annulus
#endif  // HWY_ONCE
