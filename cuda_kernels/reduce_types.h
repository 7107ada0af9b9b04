// Element types and reductions, as host and device code know them. No CUDA header is needed here.
//
// The numbers are the public annulus_type_t and annulus_op_t (annulus.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace annulus {

// Each type is a row of reduce_types.inc.
enum class DataType : uint8_t {
#define ANNULUS_ELEMENT_TYPE(Name, name, NAME, number, ...) k##Name = number,
#define ANNULUS_DERIVED_TYPE(Name, name, NAME, number, ...) k##Name = number,
#include "cuda_kernels/reduce_types.inc"
#undef ANNULUS_ELEMENT_TYPE
};

enum class TypeClass : uint8_t { kSigned, kUnsigned, kFloat, kBool, kComplex };

struct TypeRow {
  DataType type;
  const char* name;
  TypeClass type_class;
  size_t bytes;    // Size of an element.
  DataType plain;  // The type itself, or that of its parts.
};

// By number.
inline constexpr TypeRow kTypeRows[] = {
#define ANNULUS_ELEMENT_TYPE(Name, name, NAME, number, Class, bytes, ...) \
  {DataType::k##Name, #name, TypeClass::Class, bytes, DataType::k##Name},
#define ANNULUS_DERIVED_TYPE(Name, name, NAME, number, Class, bytes, Plain) \
  {DataType::k##Name, #name, TypeClass::Class, bytes, DataType::k##Plain},
#include "cuda_kernels/reduce_types.inc"
#undef ANNULUS_ELEMENT_TYPE
};
constexpr int kNumDataTypes = sizeof kTypeRows / sizeof *kTypeRows;

// Size of the largest element, in bytes.
constexpr size_t kMostElementBytes = [] {
  size_t most = 0;
  for (const TypeRow& row : kTypeRows) most = row.bytes > most ? row.bytes : most;
  return most;
}();

static_assert([] {
  for (int i = 0; i < kNumDataTypes; ++i) {
    if (static_cast<int>(kTypeRows[i].type) != i) return false;
  }
  return true;
}());

// kAvg is kSum with one division, after the last addition (ReduceFinish).
enum class ReduceOp : uint8_t { kSum = 0, kProd = 1, kMin = 2, kMax = 3, kAvg = 4, kBand = 5, kBor = 6, kBxor = 7 };
constexpr int kNumReduceOps = 8;

// Operations that a user created, as slices and control messages name them: a base plus a slot below kMaxCustomOps.
// Every rank gives the operation the same slot.
constexpr int kMaxCustomOps = 64;
constexpr int kFirstPremulSum = 64;
constexpr int kFirstUserOp = kFirstPremulSum + kMaxCustomOps;

constexpr bool IsPremulSum(ReduceOp op) {
  return static_cast<int>(op) >= kFirstPremulSum && static_cast<int>(op) < kFirstPremulSum + kMaxCustomOps;
}
constexpr bool IsUserOp(ReduceOp op) {
  return static_cast<int>(op) >= kFirstUserOp && static_cast<int>(op) < kFirstUserOp + kMaxCustomOps;
}
constexpr bool IsOp(ReduceOp op) { return static_cast<int>(op) < kNumReduceOps || IsPremulSum(op) || IsUserOp(op); }

// What reduces in a device's memory: the device where it can, else the CPU; the device or nothing; the CPU, on copies.
enum class ReduceOn : uint8_t { kAuto, kGpu, kCpu };

constexpr bool IsType(DataType type) { return static_cast<int>(type) < kNumDataTypes; }

// 0 for a number that is no type.
constexpr size_t TypeBytes(DataType type) { return IsType(type) ? kTypeRows[static_cast<int>(type)].bytes : 0; }

constexpr const char* TypeName(DataType type) {
  return IsType(type) ? kTypeRows[static_cast<int>(type)].name : "unknown type";
}

// For a type, not for other numbers.
constexpr TypeClass ClassOf(DataType type) { return kTypeRows[static_cast<int>(type)].type_class; }

// For created operations, only their kind; their number is the offset from the base.
constexpr const char* OpName(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor"};
  if (IsPremulSum(op)) return "premul_sum";
  if (IsUserOp(op)) return "user operation";
  return static_cast<int>(op) < kNumReduceOps ? kNames[static_cast<int>(op)] : "unknown op";
}

constexpr bool IsBitwise(ReduceOp op) { return op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor; }

// Whether elements of the type have the operation. A function of the user's can do anything.
constexpr bool CanReduce(DataType type, ReduceOp op) {
  if (IsUserOp(op)) return true;
  switch (ClassOf(type)) {
    case TypeClass::kFloat:
      return !IsBitwise(op);
    case TypeClass::kBool:
      return op != ReduceOp::kAvg && !IsPremulSum(op);
    case TypeClass::kComplex:
      return op == ReduceOp::kSum || op == ReduceOp::kProd || op == ReduceOp::kAvg || IsPremulSum(op);
    default:
      return true;
  }
}

// The alignment that buffers of the type need, in bytes.
constexpr size_t TypeAlignment(DataType type) { return TypeBytes(kTypeRows[static_cast<int>(type)].plain); }

// What a reduction computes with, where other elements and another operation give the same bits.
struct PlainReduction {
  DataType type;
  ReduceOp op;
  size_t per_element;  // Elements of `type` in one of the reduction's.
};

// Any operation that the type has, but no function of the user's. The product of complex numbers stays what it is.
constexpr PlainReduction PlainOf(DataType type, ReduceOp op) {
  const TypeRow& row = kTypeRows[static_cast<int>(type)];
  if (row.type_class == TypeClass::kBool) {
    const bool is_all = op == ReduceOp::kProd || op == ReduceOp::kMin || op == ReduceOp::kBand;
    return {row.plain, op == ReduceOp::kBxor ? op : is_all ? ReduceOp::kMin : ReduceOp::kMax, 1};
  }
  if (IsBitwise(op)) return {DataType::kUint8, op, row.bytes};
  if (row.type_class == TypeClass::kComplex && op != ReduceOp::kProd) return {row.plain, op, 2};
  return {type, op, 1};
}

}  // namespace annulus
