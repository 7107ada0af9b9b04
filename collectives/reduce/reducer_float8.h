// SIMD elements of 8-bit floats, for one Highway target. Included once per target by reducer_float8.cc.
//
//   Float8Element<F>  sums, products and quotients, in float32;
//   Float8Order<F>    minimum and maximum, of the codes themselves.
// Formats and saturation follow the OCP 8-bit Floating Point Specification (docs/decisions/0015-float8-saturates.md).
// Both formats go to float32 and back by way of binary16, whose exponents hold theirs: CPUs convert from and to it,
// subnormals included. On the way back the value is rounded before, so that binary16 holds it exactly.

// Per-target include guard, as Highway asks for it.
#if defined(ANNULUS_REDUCER_FLOAT8_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ANNULUS_REDUCER_FLOAT8_H_
#undef ANNULUS_REDUCER_FLOAT8_H_
#else
#define ANNULUS_REDUCER_FLOAT8_H_
#endif

#include <limits>

#include "collectives/reduce/reducer_simd.h"

HWY_BEFORE_NAMESPACE();
namespace annulus {
namespace HWY_NAMESPACE {

// Float32 values represent 2^8 times their value, which saves some multiplications: the bias of E4M3 is 7, that of
// binary16 is 15.
struct E4M3 {
  static constexpr int kMantissa = 3;
  static constexpr float kLargest = 448 / 256.0f;
  static constexpr float kSmallestNormal = 0x1p-14f;
  static constexpr float kProductScale = 256;
  static constexpr uint32_t kNaNBits = 0x3ff00000;  // 480 / 256: the number that the code of NaN would be.
  static constexpr int8_t kLastNumber = 0x7e;
  static constexpr int8_t kLastFinite = 0x7e;
  static constexpr int8_t kNaN = 0x7f;

  template <class D32, class V8>
  static HWY_ATTR HWY_INLINE hn::Vec<D32> Widen(D32 d, V8 code) {
    const hn::Rebind<int16_t, D32> d16;
    // The sign, a zero, and the code's other bits. NaN alone carries into the zero's place.
    const auto half = hn::And(hn::ShiftLeft<7>(hn::PromoteTo(d16, code)), hn::Set(d16, static_cast<int16_t>(0xbfff)));
    const auto carry = hn::And(hn::Add(half, hn::Set(d16, int16_t{0x80})), hn::Set(d16, int16_t{0x4000}));
    return Half::Widen(d, hn::BitCast(hn::RebindToUnsigned<decltype(d16)>(), hn::Or(half, carry)));
  }
  // The code in the upper byte, from a binary16 that holds it exactly.
  template <class D16>
  static HWY_ATTR HWY_INLINE hn::Vec<D16> Align(D16 d, hn::Vec<D16> half) {
    return hn::Add(half, hn::And(half, hn::Set(d, uint16_t{0x3fff})));
  }
};

struct E5M2 {
  static constexpr int kMantissa = 2;
  static constexpr float kLargest = 57344;
  static constexpr float kSmallestNormal = 0x1p-14f;
  static constexpr float kProductScale = 1;
  static constexpr uint32_t kNaNBits = 0x7fc00000;
  static constexpr int8_t kLastNumber = 0x7c;
  static constexpr int8_t kLastFinite = 0x7b;
  static constexpr int8_t kNaN = 0x7e;

  template <class D32, class V8>
  static HWY_ATTR HWY_INLINE hn::Vec<D32> Widen(D32 d, V8 code) {
    const hn::Rebind<int16_t, D32> d16;
    const auto half = hn::ShiftLeft<8>(hn::PromoteTo(d16, code));
    return Half::Widen(d, hn::BitCast(hn::RebindToUnsigned<decltype(d16)>(), half));
  }
  template <class D16>
  static HWY_ATTR HWY_INLINE hn::Vec<D16> Align(D16, hn::Vec<D16> half) {
    return half;
  }
};

template <class Format>
struct Float8Element {
  using Lane = int8_t;
  using D32 = hn::ScalableTag<float>;
  using D8 = hn::Rebind<int8_t, D32>;
  using V = hn::Vec<D32>;
  using Divisor = float;
  using Factor = float;
  static constexpr size_t kMaxLanes = HWY_MAX_BYTES / sizeof(float);

  static HWY_ATTR HWY_INLINE size_t Lanes() { return hn::Lanes(D32()); }
  static HWY_ATTR HWY_INLINE V Load(const Lane* from) { return Format::Widen(D32(), hn::LoadU(D8(), from)); }
  static HWY_ATTR HWY_INLINE void Store(V v, Lane* to) { hn::StoreU(Narrow(v), D8(), to); }
  static Divisor MakeDivisor(uint32_t n) { return static_cast<float>(n); }
  static Factor MakeFactor(double factor) { return static_cast<float>(factor); }
  static HWY_ATTR HWY_INLINE V Multiply(V a, Factor factor) { return hn::Mul(a, hn::Set(D32(), factor)); }

  template <class Op>
  static HWY_ATTR HWY_INLINE V Combine(V a, V b) {
    if constexpr (std::is_same_v<Op, Sum>) {
      return hn::Add(a, b);
    } else {
      const V product = hn::Mul(a, b);
      return Format::kProductScale == 1 ? product : hn::Mul(product, hn::Set(D32(), Format::kProductScale));
    }
  }
  // Rounds the sum to 8 bits before it is divided, as all reducers do: it may have been stored in between.
  static HWY_ATTR HWY_INLINE V Divide(V sum, Divisor n) {
    return hn::Div(Format::Widen(D32(), Narrow(sum)), hn::Set(D32(), n));
  }

 private:
  // Saturates, rounds to nearest even, and makes NaNs canonical.
  static HWY_ATTR HWY_INLINE hn::Vec<D8> Narrow(V v) {
    const D32 d;
    const hn::RebindToSigned<D32> di;
    const hn::Rebind<uint16_t, D32> d16;
    const V clamped = hn::Max(hn::Min(v, hn::Set(d, Format::kLargest)), hn::Set(d, -Format::kLargest));
    // The power of two below the number, or that of the smallest normal number for subnormals; times 1.5 * 2^k its last
    // bit weighs as much as that of the result, so that adding it rounds there.
    const auto exponent = hn::And(hn::BitCast(di, clamped), hn::Set(di, 0x7f800000));
    const auto floor = hn::Max(exponent, hn::BitCast(di, hn::Set(d, Format::kSmallestNormal)));
    const auto magic = hn::BitCast(d, hn::Add(floor, hn::Set(di, ((23 - Format::kMantissa) << 23) + 0x400000)));
    const V rounded = hn::Sub(hn::Add(clamped, magic), magic);
    // Adding the magic number loses the sign of zero.
    const V number = hn::Or(rounded, hn::And(v, hn::BitCast(d, hn::Set(di, std::numeric_limits<int32_t>::min()))));
    const V nan = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D32>(), Format::kNaNBits));
    const auto half = Half::Narrow(d, hn::IfThenElse(hn::Eq(v, v), number, nan));
    const auto code = hn::ShiftRight<8>(Format::Align(d16, half));
    return hn::BitCast(D8(), hn::TruncateTo(hn::RebindToUnsigned<D8>(), code));
  }
};

// Codes with a clear sign bit are ordered as their values; those with the sign bit set are in reverse order.
template <class Format>
struct Float8Order {
  using Lane = int8_t;
  using D = hn::ScalableTag<int8_t>;
  using V = hn::Vec<D>;
  using Divisor = float;
  static constexpr size_t kMaxLanes = HWY_MAX_BYTES;

  static HWY_ATTR HWY_INLINE size_t Lanes() { return hn::Lanes(D()); }
  static HWY_ATTR HWY_INLINE V Load(const Lane* from) { return hn::LoadU(D(), from); }
  static HWY_ATTR HWY_INLINE void Store(V v, Lane* to) { hn::StoreU(v, D(), to); }
  static Divisor MakeDivisor(uint32_t) { return 0; }

  template <class Op>
  static HWY_ATTR HWY_INLINE V Combine(V a, V b) {
    constexpr bool kMin = std::is_same_v<Op, Minimum>;
    const D d;
    V ordered = kMin ? hn::Min(Flip(a), Flip(b)) : hn::Max(Flip(a), Flip(b));
    if constexpr (Format::kLastFinite != Format::kLastNumber) {  // An infinite result saturates.
      const int8_t most = Format::kLastFinite;
      ordered = hn::Max(hn::Min(ordered, hn::Set(d, most)), hn::Set(d, static_cast<int8_t>(-1 - most)));
    }
    const V mask = hn::Set(d, int8_t{0x7f});
    const auto is_nan = hn::Gt(hn::Max(hn::And(a, mask), hn::And(b, mask)), hn::Set(d, Format::kLastNumber));
    return hn::IfThenElse(is_nan, hn::Set(d, Format::kNaN), Flip(ordered));
  }

 private:
  // To numbers in the order of the values, and back.
  static HWY_ATTR HWY_INLINE V Flip(V v) {
    const D d;
    return hn::Xor(v, hn::And(hn::BroadcastSignBit(v), hn::Set(d, int8_t{0x7f})));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace annulus
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
