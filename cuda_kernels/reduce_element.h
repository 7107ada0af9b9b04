// Elements of the device reduction, for host and device: what is done with one element or two. The results have the
// bits of the host reducer (collectives/reduce/reducer.h), which has the rules.
//
// All functions take and give elements as they lie in memory, so every step is rounded.
// Threads: plain functions.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda_kernels/narrow_floats.h"
#include "cuda_kernels/portable.h"
#include "cuda_kernels/reduce_types.h"

namespace annulus::cuda {

struct Sum {};
struct Product {};
struct Minimum {};
struct Maximum {};
struct And {};
struct Or {};
struct Xor {};

template <class Op>
inline constexpr bool kIsBitwise = std::is_same_v<Op, And> || std::is_same_v<Op, Or> || std::is_same_v<Op, Xor>;

// An element of any number of bytes, up to a word.
template <class Op>
ANNULUS_PORTABLE uint32_t CombineBits(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<Op, And>) {
    return a & b;
  } else if constexpr (std::is_same_v<Op, Or>) {
    return a | b;
  } else {
    return a ^ b;
  }
}

template <typename T>
struct IntegerElement {
  using Stored = T;
  using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;  // Unsigned: wraps around.

  template <class Op>
  static ANNULUS_PORTABLE T Combine(T a, T b) {
    if constexpr (std::is_same_v<Op, Sum>) {
      return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    } else if constexpr (std::is_same_v<Op, Product>) {
      return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    } else if constexpr (std::is_same_v<Op, Minimum>) {
      return b < a ? b : a;
    } else {
      return a < b ? b : a;
    }
  }
  // Towards zero. A divisor that is larger than any T leaves nothing of it.
  static ANNULUS_PORTABLE T Divide(T sum, uint32_t divisor) {
    if constexpr (sizeof(T) < 4) {
      return divisor > 0xffff ? T{0} : static_cast<T>(static_cast<int32_t>(sum) / static_cast<int32_t>(divisor));
    } else {
      return static_cast<T>(sum / static_cast<T>(divisor));
    }
  }
  // `factor` is a value that T, or its signed or unsigned sibling, can hold.
  static ANNULUS_PORTABLE T Scale(T a, double factor) {
    const T own =
        factor < 0 ? static_cast<T>(static_cast<int64_t>(factor)) : static_cast<T>(static_cast<uint64_t>(factor));
    return Combine<Product>(a, own);
  }
};

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <typename T>
ANNULUS_PORTABLE T CanonicalNaN() {
  if constexpr (sizeof(T) == 4) {
    return BitsAs<T>(uint32_t{0x7fc00000});
  } else {
    return BitsAs<T>(uint64_t{0x7ff8000000000000});
  }
}

template <typename T>
ANNULUS_PORTABLE T Canonical(T value) {
  return value != value ? CanonicalNaN<T>() : value;
}

// a op b of float32 or float64; any NaN is the canonical one.
template <class Op, typename T>
ANNULUS_PORTABLE T CombineFloats(T a, T b) {
  if constexpr (std::is_same_v<Op, Sum>) {
    return Canonical(a + b);
  } else if constexpr (std::is_same_v<Op, Product>) {
    return Canonical(a * b);
  } else {
    constexpr bool kMin = std::is_same_v<Op, Minimum>;
    if (a != a || b != b) return CanonicalNaN<T>();
    if (a < b) return kMin ? a : b;
    if (b < a) return kMin ? b : a;
    // Equal: they differ at most in the sign of zero. "Or" keeps the minus, "and" loses it.
    using Bits = BitsOf<T>;
    return BitsAs<T>(kMin ? BitsAs<Bits>(a) | BitsAs<Bits>(b) : BitsAs<Bits>(a) & BitsAs<Bits>(b));
  }
}

template <typename T>
ANNULUS_PORTABLE T DivideFloat(T sum, uint32_t divisor) {
  return Canonical(sum / static_cast<T>(divisor));
}

template <typename T>
struct FloatElement {
  using Stored = T;

  template <class Op>
  static ANNULUS_PORTABLE T Combine(T a, T b) {
    return CombineFloats<Op>(a, b);
  }
  static ANNULUS_PORTABLE T Divide(T sum, uint32_t divisor) { return DivideFloat(sum, divisor); }
  static ANNULUS_PORTABLE T Scale(T a, double factor) { return CombineFloats<Product>(a, static_cast<T>(factor)); }
};

// Computed in float32, then rounded.
template <class Format>
struct NarrowElement {
  using Stored = typename Format::Stored;

  template <class Op>
  static ANNULUS_PORTABLE Stored Combine(Stored a, Stored b) {
    return Format::Narrow(CombineFloats<Op>(Format::Widen(a), Format::Widen(b)));
  }
  static ANNULUS_PORTABLE Stored Divide(Stored sum, uint32_t divisor) {
    return Format::Narrow(DivideFloat(Format::Widen(sum), divisor));
  }
  static ANNULUS_PORTABLE Stored Scale(Stored a, double factor) {
    return Format::Narrow(CombineFloats<Product>(Format::Widen(a), static_cast<float>(factor)));
  }
};

// Products only: sums are those of the parts. Each product and each sum is rounded, and no infinity is repaired.
template <typename T>
struct ComplexElement {
  struct Stored {
    T real;
    T imaginary;
  };

  template <class Op>
  static ANNULUS_PORTABLE Stored Combine(Stored a, Stored b) {
    static_assert(std::is_same_v<Op, Product>);
    return {Canonical(a.real * b.real - a.imaginary * b.imaginary),
            Canonical(a.real * b.imaginary + a.imaginary * b.real)};
  }
};

template <DataType>
struct ElementOf;
#define ANNULUS_ELEMENT_TYPE(Name, name, NAME, number, Class, bytes, Family, Element) \
  template <>                                                                         \
  struct ElementOf<DataType::k##Name> : Element {};
#include "cuda_kernels/reduce_types.inc"
#undef ANNULUS_ELEMENT_TYPE
template <>
struct ElementOf<DataType::kComplex64> : ComplexElement<float> {};
template <>
struct ElementOf<DataType::kComplex128> : ComplexElement<double> {};

}  // namespace annulus::cuda
