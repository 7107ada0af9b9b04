#include "frameworks/torch/elements.h"

namespace annulus_torch {
namespace {

// The type of Annulus that does sums of this one; ANNULUS_TYPE_LAST: none.
annulus_type_t Arithmetic(at::ScalarType type) {
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
    default:
      return ANNULUS_TYPE_LAST;
  }
}

[[noreturn]] void Refuse(at::ScalarType type, const c10d::ReduceOp& op) {
  static constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  TORCH_CHECK(false, "Annulus has no reduction ", op.op_ < std::size(kNames) ? kNames[op.op_] : "UNUSED",
              " of tensors of type ", c10::toString(type));
}

annulus_op_t ArithmeticOp(at::ScalarType type, const c10d::ReduceOp& op) {
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
    default:
      Refuse(type, op);
  }
}

// The operation on bytes that are 0 or 1: a sum is "any", a product is "all".
annulus_op_t BoolOp(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::MAX:
      return ANNULUS_MAX;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
      return ANNULUS_MIN;
    default:
      Refuse(at::kBool, op);
  }
}

double FactorOf(const c10d::ReduceOp& op) {
  const auto* const supplement = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(supplement != nullptr, "Annulus: PREMUL_SUM without its factor");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
}

}  // namespace

Elements BytesOf(const at::Tensor& tensor) { return {ANNULUS_UINT8, tensor.nbytes()}; }

Reduction ReductionOf(at::ScalarType type, const c10d::ReduceOp& op) {
  Reduction reduction;
  reduction.through = type;
  const bool is_bitwise = op == c10d::ReduceOp::BAND || op == c10d::ReduceOp::BOR || op == c10d::ReduceOp::BXOR;
  if (is_bitwise) {
    if (!at::isIntegralType(type, /*includeBool=*/true)) Refuse(type, op);
    reduction.type = ANNULUS_UINT8;
    reduction.per_element = c10::elementSize(type);
    reduction.bitwise = static_cast<int>(op.op_) - static_cast<int>(c10d::ReduceOp::BAND);
    return reduction;
  }
  if (type == at::kBool) {
    reduction.type = ANNULUS_UINT8;
    reduction.op = BoolOp(op);
    return reduction;
  }
  // Sums and products of the wider type wrap around to the same bits.
  if (type == at::kShort) reduction.through = at::kInt;
  if (type == at::kUInt16) reduction.through = at::kInt;
  const bool is_complex = type == at::kComplexFloat || type == at::kComplexDouble;
  if (is_complex) {
    if (!c10d::isComplexViewAsRealAllowed(op)) Refuse(type, op);
    reduction.per_element = 2;
  }
  reduction.type = Arithmetic(is_complex ? c10::toRealValueType(type) : reduction.through);
  if (reduction.type == ANNULUS_TYPE_LAST) Refuse(type, op);
  reduction.is_scaled = op == c10d::ReduceOp::PREMUL_SUM;
  if (reduction.is_scaled) {
    reduction.factor = FactorOf(op);
  } else {
    reduction.op = ArithmeticOp(type, op);
  }
  return reduction;
}

}  // namespace annulus_torch
