// The element types and operations of the host reducer, written with Highway's portable vectors. Each file that
// compiles kernels includes this header once for every instruction set (a "target" of Highway).
//
// An Element type says how a vector of elements is loaded, combined, divided and stored:
//   IntegerElement<T>  integers; overflow wraps around
//   FloatElement<T>    float32 and float64
//   NarrowElement<F>   16-bit floats: computed in float32, then rounded to nearest even
//   BrainElement       bfloat16: the results of NarrowElement<Brain>, faster
// Every NaN in a result is replaced by one canonical quiet NaN. Otherwise its bits would depend on the order of
// operands.

// An include guard that admits this header once per target. The form is prescribed by Highway.
#if defined(ANNULUS_REDUCER_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ANNULUS_REDUCER_SIMD_H_
#undef ANNULUS_REDUCER_SIMD_H_
#else
#define ANNULUS_REDUCER_SIMD_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace annulus {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct Sum {};
struct Product {};
struct Minimum {};
struct Maximum {};
struct BitAnd {};
struct BitOr {};
struct BitXor {};
struct Scale {};  // Multiplies the left operand by a factor; there is no right operand.

// Converts an integral factor to T. A factor that only the type of the other signedness can hold keeps its bits; in a
// product that wraps around, these have the same effect.
template <typename T>
T WrapFactor(double factor) {
  return factor < 0 ? static_cast<T>(static_cast<int64_t>(factor)) : static_cast<T>(static_cast<uint64_t>(factor));
}

template <typename T>
struct IntegerElement {
  using Lane = T;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  using Divisor = std::conditional_t<sizeof(T) == 8, T, double>;
  using Factor = T;
  static constexpr size_t kMaxLanes = HWY_MAX_BYTES / sizeof(T);

  static HWY_ATTR HWY_INLINE size_t Lanes() { return hn::Lanes(D()); }
  static HWY_ATTR HWY_INLINE V Load(const T* from) { return hn::LoadU(D(), from); }
  static HWY_ATTR HWY_INLINE void Store(V v, T* to) { hn::StoreU(v, D(), to); }
  static Divisor MakeDivisor(uint32_t n) { return static_cast<Divisor>(n); }
  static Factor MakeFactor(double factor) { return WrapFactor<T>(factor); }
  static HWY_ATTR HWY_INLINE V Multiply(V a, Factor factor) { return Combine<Product>(a, hn::Set(D(), factor)); }

  template <class Op>
  static HWY_ATTR HWY_INLINE V Combine(V a, V b) {
    if constexpr (std::is_same_v<Op, Sum>) {
      return hn::Add(a, b);
    } else if constexpr (std::is_same_v<Op, Minimum>) {
      return hn::Min(a, b);
    } else if constexpr (std::is_same_v<Op, Maximum>) {
      return hn::Max(a, b);
    } else if constexpr (sizeof(T) == 4 || (sizeof(T) == 2 && HWY_TARGET != HWY_SCALAR)) {
      return hn::Mul(a, b);
    } else {
      // Some instruction sets cannot multiply vectors of 64-bit integers. The product is computed unsigned and in at
      // least 32 bits, because signed overflow is undefined.
      using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
      return PerLane(a, b, [](T x, T y) { return static_cast<T>(static_cast<Wide>(x) * static_cast<Wide>(y)); });
    }
  }
  static HWY_ATTR HWY_INLINE V Divide(V a, Divisor n) {
    if constexpr (sizeof(T) < 8) {
      // Divides in float64, because compilers can vectorise that and not integer division. The truncated quotient is
      // exact: a quotient that is not an integer differs from every integer by 2^-32 of itself or more; rounding to
      // float64 changes it by at most 2^-53 of itself.
      return PerLane(a, a, [n](T x, T) { return static_cast<T>(static_cast<double>(x) / n); });
    } else {
      return PerLane(a, a, [n](T x, T) { return static_cast<T>(x / n); });
    }
  }

 private:
  template <class Function>
  static HWY_ATTR HWY_INLINE V PerLane(V a, V b, Function function) {
    HWY_ALIGN T x[kMaxLanes];
    HWY_ALIGN T y[kMaxLanes];
    hn::Store(a, D(), x);
    hn::Store(b, D(), y);
    for (size_t i = 0; i < Lanes(); ++i) x[i] = function(x[i], y[i]);
    return hn::Load(D(), x);
  }
};

// Combines two vectors of floats. NaNs in the result are not canonical yet: CanonicalNaN must follow.
template <class Op, class D, class V = hn::Vec<D>>
HWY_ATTR HWY_INLINE V CombineFloats(D d, V a, V b) {
  if constexpr (std::is_same_v<Op, Sum>) {
    return hn::Add(a, b);
  } else if constexpr (std::is_same_v<Op, Product>) {
    return hn::Mul(a, b);
  } else {
    // Two operands that compare equal have the same bits, or are +0 and -0. Min takes -0 by "or" of the sign bits, max
    // takes +0 by "and".
    constexpr bool kMin = std::is_same_v<Op, Minimum>;
    const V equal = kMin ? hn::Or(a, b) : hn::And(a, b);
    const auto a_wins = kMin ? hn::Lt(a, b) : hn::Gt(a, b);
    const auto b_wins = kMin ? hn::Lt(b, a) : hn::Gt(b, a);
    const V ordered = hn::IfThenElse(a_wins, a, hn::IfThenElse(b_wins, b, equal));
    // Any NaN operand makes the result NaN. Comparing each operand with itself finds NaNs; testing a + b would also
    // find inf - inf, whose minimum is a number.
    const auto both_numbers = hn::And(hn::Eq(a, a), hn::Eq(b, b));
    const auto quiet = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), ~hwy::MakeUnsigned<hn::TFromD<D>>{0}));
    return hn::IfThenElse(both_numbers, ordered, quiet);
  }
}

template <class D, class V = hn::Vec<D>>
HWY_ATTR HWY_INLINE V CanonicalNaN(D d, V v) {
  using U = hwy::MakeUnsigned<hn::TFromD<D>>;
  constexpr U kQuiet = sizeof(U) == 4 ? static_cast<U>(0x7fc00000u) : static_cast<U>(0x7ff8000000000000ull);
  return hn::IfThenElse(hn::Eq(v, v), v, hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), kQuiet)));
}

template <typename T>
struct FloatElement {
  using Lane = T;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  using Divisor = T;
  using Factor = T;
  static constexpr size_t kMaxLanes = HWY_MAX_BYTES / sizeof(T);

  static HWY_ATTR HWY_INLINE size_t Lanes() { return hn::Lanes(D()); }
  static HWY_ATTR HWY_INLINE V Load(const T* from) { return hn::LoadU(D(), from); }
  static HWY_ATTR HWY_INLINE void Store(V v, T* to) { hn::StoreU(v, D(), to); }
  static Divisor MakeDivisor(uint32_t n) { return static_cast<T>(n); }
  static Factor MakeFactor(double factor) { return static_cast<T>(factor); }
  static HWY_ATTR HWY_INLINE V Multiply(V a, Factor factor) { return Combine<Product>(a, hn::Set(D(), factor)); }
  template <class Op>
  static HWY_ATTR HWY_INLINE V Combine(V a, V b) {
    return CanonicalNaN(D(), CombineFloats<Op>(D(), a, b));
  }
  static HWY_ATTR HWY_INLINE V Divide(V a, Divisor n) { return CanonicalNaN(D(), hn::Div(a, hn::Set(D(), n))); }
};

// bfloat16, which is the upper half of a float32.
struct Brain {
  template <class D32, class V16>
  static HWY_ATTR HWY_INLINE hn::Vec<D32> Widen(D32 d, V16 bits) {
    const hn::RebindToUnsigned<D32> du;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
  }
  // Every NaN in `v` must be canonical: rounding could turn the bits of others into infinity.
  template <class D32>
  static HWY_ATTR HWY_INLINE auto Narrow(D32 d, hn::Vec<D32> v) {
    const hn::RebindToUnsigned<D32> du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
    return hn::DemoteTo(hn::Rebind<uint16_t, D32>(), hn::BitCast(hn::RebindToSigned<D32>(), rounded));
  }
};

// IEEE binary16. x86 processors with AVX2 convert in hardware: they round to nearest even and handle subnormals. Other
// targets get the same results from integer operations and one float operation that takes care of subnormals. The
// method is that of F. Giesen, "Float->half variants" (2012).
struct Half {
  template <class D32, class V16>
  static HWY_ATTR HWY_INLINE hn::Vec<D32> Widen(D32 d, V16 half) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D32>(), half));
#else
    const hn::RebindToUnsigned<D32> du;
    const auto bits = hn::PromoteTo(du, half);
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
    // Multiplying by 2^112 changes the exponent's bias from 15 to 127. It also turns subnormal halves into normal
    // floats.
    const auto scaled = hn::Mul(hn::BitCast(d, magnitude), hn::BitCast(d, hn::Set(du, 0x77800000u)));
    const auto special = hn::Or(magnitude, hn::Set(du, 0x7f800000u));  // Infinity and NaN.
    const auto is_special = hn::Ge(scaled, hn::BitCast(d, hn::Set(du, 0x47800000u)));
    return hn::BitCast(d,
                       hn::Or(sign, hn::IfThenElse(hn::RebindMask(du, is_special), special, hn::BitCast(du, scaled))));
#endif
  }
  // Every NaN in `v` must be canonical: hardware would keep some bits of any other one.
  template <class D32>
  static HWY_ATTR HWY_INLINE auto Narrow(D32 d, hn::Vec<D32> v) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
    return hn::BitCast(hn::Rebind<uint16_t, D32>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D32>(), v));
#else
    const hn::RebindToUnsigned<D32> du;
    const auto bits = hn::BitCast(du, v);
    const auto sign = hn::And(bits, hn::Set(du, 0x80000000u));
    const auto magnitude = hn::Xor(bits, sign);
    // Normal results: change the exponent's bias, and round to nearest even while the lowest 13 bits are dropped. The
    // constant does both.
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
    const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, odd), hn::Set(du, 0xc8000fffu)));
    // Subnormal results: in the sum with 0.5, the lowest bit of the float has the weight of the lowest bit of a half.
    // So the addition rounds to it, and subtracting the bits of 0.5 leaves the half's bits.
    const auto half = hn::Set(du, 0x3f000000u);
    const auto small = hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, half))), half);
    const auto special =
        hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7f800000u)), hn::Set(du, 0x7e00u), hn::Set(du, 0x7c00u));
    auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000u)), small, normal);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x477fffffu)), special, result);
    result = hn::Or(result, hn::ShiftRight<16>(sign));
    return hn::DemoteTo(hn::Rebind<uint16_t, D32>(), hn::BitCast(hn::RebindToSigned<D32>(), result));
#endif
  }
};

template <class Format>
struct NarrowElement {
  using Lane = uint16_t;
  using D32 = hn::ScalableTag<float>;
  using DBits = hn::Rebind<Lane, D32>;
  using V = hn::Vec<D32>;
  using Divisor = float;
  using Factor = float;
  static constexpr size_t kMaxLanes = HWY_MAX_BYTES / sizeof(float);

  static HWY_ATTR HWY_INLINE size_t Lanes() { return hn::Lanes(D32()); }
  static HWY_ATTR HWY_INLINE V Load(const Lane* from) { return Format::Widen(D32(), hn::LoadU(DBits(), from)); }
  static HWY_ATTR HWY_INLINE void Store(V v, Lane* to) { hn::StoreU(Format::Narrow(D32(), v), DBits(), to); }
  static Divisor MakeDivisor(uint32_t n) { return static_cast<float>(n); }
  static Factor MakeFactor(double factor) { return static_cast<float>(factor); }
  static HWY_ATTR HWY_INLINE V Multiply(V a, Factor factor) { return Combine<Product>(a, hn::Set(D32(), factor)); }
  template <class Op>
  static HWY_ATTR HWY_INLINE V Combine(V a, V b) {
    return CanonicalNaN(D32(), CombineFloats<Op>(D32(), a, b));
  }
  // Rounds the sum to 16 bits before it is divided, as all reducers do: it may have been stored in between.
  static HWY_ATTR HWY_INLINE V Divide(V sum, Divisor n) {
    const V rounded = Format::Widen(D32(), Format::Narrow(D32(), sum));
    return CanonicalNaN(D32(), hn::Div(rounded, hn::Set(D32(), n)));
  }
};

// A vector of one lane has no odd lanes, and vectors whose size the compiler does not know cannot be members of a
// struct.
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE

using BrainElement = NarrowElement<Brain>;

#else

// Computes what NarrowElement<Brain> computes without moving data between lanes. A 32-bit lane holds two bfloat16
// elements. Shifting the even one up, or masking it away, widens one of the two to float32 in place; storing puts the
// halves of two such lanes together again.
struct BrainElement {
  using Lane = uint16_t;
  using D16 = hn::ScalableTag<Lane>;
  using DU = hn::RepartitionToWide<D16>;
  using D32 = hn::RebindToFloat<DU>;
  using V32 = hn::Vec<D32>;
  using VU = hn::Vec<DU>;
  struct V {
    V32 even;
    V32 odd;
  };
  using Divisor = float;
  using Factor = float;
  static constexpr size_t kMaxLanes = HWY_MAX_BYTES / sizeof(Lane);

  static HWY_ATTR HWY_INLINE size_t Lanes() { return hn::Lanes(D16()); }
  static HWY_ATTR HWY_INLINE V Load(const Lane* from) {
    const VU bits = hn::BitCast(DU(), hn::LoadU(D16(), from));
    return {hn::BitCast(D32(), hn::ShiftLeft<16>(bits)), hn::BitCast(D32(), hn::And(bits, Upper()))};
  }
  // Every NaN in `v` must be canonical: rounding could turn the bits of others into infinity.
  static HWY_ATTR HWY_INLINE void Store(V v, Lane* to) {
    const VU bits = hn::Or(hn::ShiftRight<16>(Round(v.even)), hn::And(Round(v.odd), Upper()));
    hn::StoreU(hn::BitCast(D16(), bits), D16(), to);
  }
  static Divisor MakeDivisor(uint32_t n) { return static_cast<float>(n); }
  static Factor MakeFactor(double factor) { return static_cast<float>(factor); }
  static HWY_ATTR HWY_INLINE V Multiply(V a, Factor factor) {
    const V32 factors = hn::Set(D32(), factor);
    return Combine<Product>(a, {factors, factors});
  }
  template <class Op>
  static HWY_ATTR HWY_INLINE V Combine(V a, V b) {
    return {CanonicalNaN(D32(), CombineFloats<Op>(D32(), a.even, b.even)),
            CanonicalNaN(D32(), CombineFloats<Op>(D32(), a.odd, b.odd))};
  }
  // Rounds the sum to 16 bits before it is divided, as all reducers do: it may have been stored in between.
  static HWY_ATTR HWY_INLINE V Divide(V sum, Divisor n) { return {DivideHalf(sum.even, n), DivideHalf(sum.odd, n)}; }

 private:
  static HWY_ATTR HWY_INLINE VU Upper() { return hn::Set(DU(), 0xffff0000u); }
  // Rounds to nearest even, in the upper half of each lane. The lower halves are left over and have no meaning.
  static HWY_ATTR HWY_INLINE VU Round(V32 v) {
    const VU bits = hn::BitCast(DU(), v);
    const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(DU(), 1u));
    return hn::Add(bits, hn::Add(odd, hn::Set(DU(), 0x7fffu)));
  }
  static HWY_ATTR HWY_INLINE V32 DivideHalf(V32 sum, Divisor n) {
    const V32 rounded = hn::BitCast(D32(), hn::And(Round(sum), Upper()));
    return CanonicalNaN(D32(), hn::Div(rounded, hn::Set(D32(), n)));
  }
};

#endif

}  // namespace HWY_NAMESPACE
}  // namespace annulus
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
