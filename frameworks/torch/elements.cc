#include "frameworks/torch/elements.h"

#include <cmath>

#include "frameworks/torch/versions.h"

namespace annulus_torch {
namespace {

// ANNULUS_TYPE_LAST: there is none.
annulus_type_t TypeOf(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return ANNULUS_FLOAT32;
    case at::kDouble:
      return ANNULUS_FLOAT64;
    case at::kHalf:
      return ANNULUS_FLOAT16;
    case at::kBFloat16:
      return ANNULUS_BFLOAT16;
    case at::kFloat8_e4m3fn:
      return ANNULUS_FLOAT8_E4M3;
    case at::kFloat8_e5m2:
      return ANNULUS_FLOAT8_E5M2;
    case at::kChar:
      return ANNULUS_INT8;
    case at::kByte:
      return ANNULUS_UINT8;
    case at::kInt:
      return ANNULUS_INT32;
    case at::kLong:
      return ANNULUS_INT64;
    case at::kUInt32:
      return ANNULUS_UINT32;
    case at::kUInt64:
      return ANNULUS_UINT64;
    case at::kShort:
      return ANNULUS_INT16;
    case at::kUInt16:
      return ANNULUS_UINT16;
    case at::kBool:
      return ANNULUS_BOOL;
    case at::kComplexFloat:
      return ANNULUS_COMPLEX64;
    case at::kComplexDouble:
      return ANNULUS_COMPLEX128;
    default:
      return ANNULUS_TYPE_LAST;
  }
}

[[noreturn]] void Refuse(at::ScalarType type, const c10d::ReduceOp& op) {
  static constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  TORCH_CHECK(false, "Annulus has no reduction ", op.op_ < std::size(kNames) ? kNames[op.op_] : "UNUSED",
              " of tensors of type ", c10::toString(type));
}

annulus_op_t OpOf(at::ScalarType type, const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ANNULUS_SUM;
    case c10d::ReduceOp::AVG:
      return ANNULUS_AVG;
    case c10d::ReduceOp::PRODUCT:
      return ANNULUS_PROD;
    case c10d::ReduceOp::MIN:
      return ANNULUS_MIN;
    case c10d::ReduceOp::MAX:
      return ANNULUS_MAX;
    case c10d::ReduceOp::BAND:
      return ANNULUS_BAND;
    case c10d::ReduceOp::BOR:
      return ANNULUS_BOR;
    case c10d::ReduceOp::BXOR:
      return ANNULUS_BXOR;
    default:
      Refuse(type, op);
  }
}

// Whether elements of the type have the operation (annulus_op_t in annulus.h).
bool HasOp(at::ScalarType type, const c10d::ReduceOp& op) {
  const bool is_bitwise = op == c10d::ReduceOp::BAND || op == c10d::ReduceOp::BOR || op == c10d::ReduceOp::BXOR;
  if (is_bitwise) return at::isIntegralType(type, /*includeBool=*/true);
  if (type == at::kBool) return op != c10d::ReduceOp::AVG && op != c10d::ReduceOp::PREMUL_SUM;
  return !at::isComplexType(type) || (op != c10d::ReduceOp::MIN && op != c10d::ReduceOp::MAX);
}

double FactorOf(const c10d::ReduceOp& op) {
  const auto* const supplement = dynamic_cast<const PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(supplement != nullptr, "Annulus: PREMUL_SUM without its factor");
  // To read it the host waits, which would end the capture with an error.
  const bool is_waited_for = supplement->tensor_factor.defined() && supplement->tensor_factor.is_cuda();
  TORCH_CHECK(
      !is_waited_for || !IsCapturingHere(),
      "Annulus: the factor of PREMUL_SUM is a CUDA tensor, which cannot be read while the call is captured into a "
      "CUDA graph; give a number");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
}

// Whether the type can hold the factor, as Annulus asks of integers.
bool Holds(at::ScalarType type, double factor) {
  if (!at::isIntegralType(type, /*includeBool=*/false)) return true;
  const int bits = 8 * static_cast<int>(c10::elementSize(type)) - (at::isSignedType(type) ? 1 : 0);
  const double least = at::isSignedType(type) ? -std::ldexp(1.0, bits) : 0;
  return factor == std::trunc(factor) && factor >= least && factor < std::ldexp(1.0, bits);
}

}  // namespace

Elements BytesOf(const at::Tensor& tensor) { return {ANNULUS_UINT8, tensor.nbytes()}; }

Reduction ReductionOf(at::ScalarType type, const c10d::ReduceOp& op) {
  Reduction reduction;
  reduction.type = TypeOf(type);
  if (reduction.type == ANNULUS_TYPE_LAST || !HasOp(type, op)) Refuse(type, op);
  reduction.is_scaled = op == c10d::ReduceOp::PREMUL_SUM;
  if (reduction.is_scaled) {
    reduction.factor = FactorOf(op);
    TORCH_CHECK(Holds(type, reduction.factor), "Annulus: PREMUL_SUM with the factor ", reduction.factor,
                ", which is no ", c10::toString(type));
  } else {
    reduction.op = OpOf(type, op);
  }
  return reduction;
}

}  // namespace annulus_torch
