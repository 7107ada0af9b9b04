// ReducerOracle: what one step of a reduction must give, by scalar code that shares nothing with the reducer; and what
// tests of the reducer need besides.
//
// Threads: plain functions.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cuda_kernels/reduce_types.h"

namespace annulus {

using Bytes = std::vector<std::byte>;

template <typename T>
T Get(const std::byte* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Put(std::byte* to, size_t i, T value) {
  std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

constexpr bool IsFloat(DataType type) { return ClassOf(type) == TypeClass::kFloat; }

struct Reduction {
  DataType type;
  ReduceOp op;
};

// Every operation of every type that has it.
std::vector<Reduction> AllReductions();
Reduction AnyReduction(std::mt19937_64* random);

// Element i of `to` = a op b [/ divisor].
void OracleStep(DataType type, ReduceOp op, uint32_t divisor, const std::byte* a, const std::byte* b, std::byte* to,
                size_t i);

// Element i of `to` = a * factor.
void OracleScale(DataType type, double factor, const std::byte* a, std::byte* to, size_t i);

// All sources from the left, divided after the last one.
Bytes FoldByOracle(DataType type, ReduceOp op, uint32_t divisor, const std::vector<Bytes>& sources, size_t count);

// Random bits, with zeros, infinities, NaNs and the like among them.
Bytes RandomElements(DataType type, size_t count, std::mt19937_64* random);

// Every instruction set that was compiled in and runs here, but in a sanitizer's build the emulated one;
// hwy::SetSupportedTargetsForTest takes them.
std::vector<int64_t> ReducerTargets();

}  // namespace annulus
