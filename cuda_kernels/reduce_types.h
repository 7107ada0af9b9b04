// Element types and reductions, as host and device code know them. No CUDA header is needed here.
//
// The numbers are the public annulus_type_t and annulus_op_t (annulus.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace annulus {

enum class DataType : uint8_t {
  kInt32 = 0,
  kInt64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kFloat32 = 4,
  kFloat64 = 5,
  kInt8 = 6,
  kUint8 = 7,
  kUint32 = 8,
  kUint64 = 9,
  kFloat8E4M3 = 10,  // OCP E4M3: no infinities, NaN is S.1111.111.
  kFloat8E5M2 = 11,  // OCP E5M2: the upper half of a binary16.
};
constexpr int kNumDataTypes = 12;

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

constexpr size_t TypeBytes(DataType type) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2:
      return 1;
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kUint64:
    case DataType::kFloat64:
      return 8;
  }
  return 0;
}

constexpr const char* TypeName(DataType type) {
  constexpr const char* kNames[] = {"int32", "int64", "float16", "bfloat16", "float32",     "float64",
                                    "int8",  "uint8", "uint32",  "uint64",   "float8_e4m3", "float8_e5m2"};
  return static_cast<int>(type) < kNumDataTypes ? kNames[static_cast<int>(type)] : "unknown type";
}

// For created operations, only their kind; their number is the offset from the base.
constexpr const char* OpName(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "prod", "min", "max", "avg"};
  if (IsPremulSum(op)) return "premul_sum";
  if (IsUserOp(op)) return "user operation";
  return static_cast<int>(op) < kNumReduceOps ? kNames[static_cast<int>(op)] : "unknown op";
}

}  // namespace annulus
