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
#include "cuda_kernels/reduce_types.inc"
#undef ANNULUS_ELEMENT_TYPE
};

enum class TypeClass : uint8_t { kSigned, kUnsigned, kFloat };

struct TypeRow {
  DataType type;
  const char* name;
  TypeClass type_class;
  size_t bytes;  // Of an element.
};

// By number.
inline constexpr TypeRow kTypeRows[] = {
#define ANNULUS_ELEMENT_TYPE(Name, name, NAME, number, Class, bytes, ...) \
  {DataType::k##Name, #name, TypeClass::Class, bytes},
#include "cuda_kernels/reduce_types.inc"
#undef ANNULUS_ELEMENT_TYPE
};
constexpr int kNumDataTypes = sizeof kTypeRows / sizeof *kTypeRows;

static_assert([] {
  for (int i = 0; i < kNumDataTypes; ++i) {
    if (static_cast<int>(kTypeRows[i].type) != i) return false;
  }
  return true;
}());

// kAvg is kSum with one division, after the last addition (ReduceFinish).
enum class ReduceOp : uint8_t { kSum = 0, kProd = 1, kMin = 2, kMax = 3, kAvg = 4 };
constexpr int kNumReduceOps = 5;

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
  constexpr const char* kNames[] = {"sum", "prod", "min", "max", "avg"};
  if (IsPremulSum(op)) return "premul_sum";
  if (IsUserOp(op)) return "user operation";
  return static_cast<int>(op) < kNumReduceOps ? kNames[static_cast<int>(op)] : "unknown op";
}

}  // namespace annulus
