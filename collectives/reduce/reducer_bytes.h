// SIMD elements of 8-bit integers, for one Highway target. Included once per target by reducer_bytes.cc.
//
// Vector units neither multiply nor divide bytes: both are done on the even and the odd bytes as 16-bit lanes.

// Per-target include guard, as Highway asks for it.
#if defined(ANNULUS_REDUCER_BYTES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ANNULUS_REDUCER_BYTES_H_
#undef ANNULUS_REDUCER_BYTES_H_
#else
#define ANNULUS_REDUCER_BYTES_H_
#endif

#include "collectives/reduce/reducer_simd.h"

HWY_BEFORE_NAMESPACE();
namespace annulus {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // One lane, which cannot be seen as anything else.

template <class D>
HWY_ATTR HWY_INLINE hn::Vec<D> MulBytes(D d, hn::Vec<D> a, hn::Vec<D> b) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(hn::GetLane(a) * hn::GetLane(b)));
}

template <class D>
HWY_ATTR HWY_INLINE hn::Vec<D> MulHighBytes(D d, hn::Vec<D> a, uint16_t factor) {
  return hn::Set(d, static_cast<uint8_t>(uint32_t{hn::GetLane(a)} * factor >> 16));
}

#else

template <class D>
using Wide = hn::RepartitionToWide<hn::RebindToUnsigned<D>>;

template <class D, class V16 = hn::Vec<Wide<D>>>
HWY_ATTR HWY_INLINE V16 EvenBytes(D, hn::Vec<D> v) {
  return hn::And(hn::BitCast(Wide<D>(), v), hn::Set(Wide<D>(), uint16_t{0xff}));
}
template <class D, class V16 = hn::Vec<Wide<D>>>
HWY_ATTR HWY_INLINE V16 OddBytes(D, hn::Vec<D> v) {
  return hn::ShiftRight<8>(hn::BitCast(Wide<D>(), v));
}

// The lower halves of a * b.
template <class D>
HWY_ATTR HWY_INLINE hn::Vec<D> MulBytes(D d, hn::Vec<D> a, hn::Vec<D> b) {
  const auto even = hn::Mul(EvenBytes(d, a), EvenBytes(d, b));
  const auto odd = hn::ShiftLeft<8>(hn::Mul(OddBytes(d, a), OddBytes(d, b)));
  return hn::BitCast(d, hn::Or(hn::And(even, hn::Set(Wide<D>(), uint16_t{0xff})), odd));
}

// a * factor / 2^16, of unsigned bytes.
template <class D>
HWY_ATTR HWY_INLINE hn::Vec<D> MulHighBytes(D d, hn::Vec<D> a, uint16_t factor) {
  const auto factors = hn::Set(Wide<D>(), factor);
  const auto odd = hn::ShiftLeft<8>(hn::MulHigh(OddBytes(d, a), factors));
  return hn::BitCast(d, hn::Or(hn::MulHigh(EvenBytes(d, a), factors), odd));
}

#endif

template <typename T>
struct ByteElement {
  using Lane = T;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  using Divisor = uint16_t;  // 2^16 / n, rounded up.
  using Factor = T;
  static constexpr size_t kMaxLanes = HWY_MAX_BYTES;

  static HWY_ATTR HWY_INLINE size_t Lanes() { return hn::Lanes(D()); }
  static HWY_ATTR HWY_INLINE V Load(const T* from) { return hn::LoadU(D(), from); }
  static HWY_ATTR HWY_INLINE void Store(V v, T* to) { hn::StoreU(v, D(), to); }

  // Rounding up adds less than n / 2^16 to 2^16 / n, so at most 255 / 256 of 1 / n to the quotient of a byte when
  // n <= 256: never enough to reach the next integer. Beyond that all quotients are 0.
  static Divisor MakeDivisor(uint32_t n) {
    return n < 2 || n > 256 ? Divisor{0} : static_cast<Divisor>((0x10000u + n - 1) / n);
  }

  static Factor MakeFactor(double factor) { return WrapFactor<T>(factor); }
  static HWY_ATTR HWY_INLINE V Multiply(V a, Factor factor) { return MulBytes(D(), a, hn::Set(D(), factor)); }

  template <class Op>
  static HWY_ATTR HWY_INLINE V Combine(V a, V b) {
    if constexpr (std::is_same_v<Op, Sum>) {
      return hn::Add(a, b);
    } else if constexpr (std::is_same_v<Op, Minimum>) {
      return hn::Min(a, b);
    } else if constexpr (std::is_same_v<Op, Maximum>) {
      return hn::Max(a, b);
    } else if constexpr (std::is_same_v<Op, BitAnd>) {
      return hn::And(a, b);
    } else if constexpr (std::is_same_v<Op, BitOr>) {
      return hn::Or(a, b);
    } else if constexpr (std::is_same_v<Op, BitXor>) {
      return hn::Xor(a, b);
    } else {
      return MulBytes(D(), a, b);
    }
  }

  static HWY_ATTR HWY_INLINE V Divide(V a, Divisor reciprocal) {
    if constexpr (std::is_signed_v<T>) {
      const hn::RebindToUnsigned<D> du;
      const V zero = hn::Zero(D());
      const auto negative = hn::Lt(a, zero);
      const V magnitude = hn::IfThenElse(negative, hn::Sub(zero, a), a);  // -128 stays, and is 128 when unsigned.
      const V quotient = hn::BitCast(D(), MulHighBytes(du, hn::BitCast(du, magnitude), reciprocal));
      return hn::IfThenElse(negative, hn::Sub(zero, quotient), quotient);
    } else {
      return MulHighBytes(D(), a, reciprocal);
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace annulus
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
