#include "tests/collectives/reduce/reducer_oracle.h"

#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "collectives/reduce/reducer.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

double HalfToDouble(uint16_t h) {
  const int exponent = h >> 10 & 31;
  const double mantissa = h & 1023;
  const double sign = h >> 15 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

// Rounds to nearest even on a grid of `bits` mantissa bits whose smallest step is 2^min_exponent.
double RoundTo(double value, int bits, int min_exponent) {
  if (value == 0 || std::isinf(value)) return value;
  const int step = std::max(std::ilogb(value) - bits, min_exponent);
  return std::ldexp(std::nearbyint(std::ldexp(value, -step)), step);
}

uint16_t DoubleToHalf(double value) {
  if (std::isnan(value)) return 0x7e00;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(RoundTo(value, 10, -24));
  if (magnitude >= 65536) return sign | 0x7c00;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -15);
  if (magnitude < std::ldexp(1.0, -14)) return sign | static_cast<uint16_t>(std::ldexp(magnitude, 24));
  return sign |
         static_cast<uint16_t>((exponent + 15) << 10 | (static_cast<int>(std::ldexp(magnitude, 10 - exponent)) & 1023));
}

double BrainToDouble(uint16_t b) { return std::bit_cast<float>(uint32_t{b} << 16); }

uint16_t DoubleToBrain(double value) {
  if (std::isnan(value)) return 0x7fc0;
  const double rounded = RoundTo(value, 7, -133);
  // Beyond the largest float the conversion gives infinity.
  const float narrow = std::fabs(rounded) > std::numeric_limits<float>::max()
                           ? std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(value))
                           : static_cast<float>(rounded);
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(narrow) >> 16);
}

// The values of all codes with the sign clear, by the table of the specification: NaN and infinities are not among
// them.
std::vector<double> Float8Values(int mantissa_bits, int bias, int largest_code) {
  std::vector<double> values;
  for (int code = 0; code <= largest_code; ++code) {
    const int exponent = code >> mantissa_bits;
    const double fraction = std::ldexp(code % (1 << mantissa_bits), -mantissa_bits);
    values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
  }
  return values;
}

const std::vector<double>& E4M3Values() {
  static const std::vector<double> values = Float8Values(3, 7, 0x7e);
  return values;
}

const std::vector<double>& E5M2Values() {
  static const std::vector<double> values = Float8Values(2, 15, 0x7b);
  return values;
}

// The code of the nearest value, of two as near the even code, of what is too large the last; signs as they are.
uint8_t NearestCode(const std::vector<double>& values, double value, uint8_t nan) {
  if (std::isnan(value)) return nan;
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::fabs(value);
  const size_t above = std::lower_bound(values.begin(), values.end(), magnitude) - values.begin();
  if (above == values.size()) return sign | static_cast<uint8_t>(above - 1);
  if (above == 0) return sign;
  const double up = values[above] - magnitude;
  const double down = magnitude - values[above - 1];
  const bool take_above = up < down || (up == down && above % 2 == 0);
  return sign | static_cast<uint8_t>(take_above ? above : above - 1);
}

double E4M3ToDouble(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return std::nan("");
  return std::copysign(E4M3Values()[code & 0x7f], code >> 7 ? -1.0 : 1.0);
}
uint8_t DoubleToE4M3(double value) { return NearestCode(E4M3Values(), value, 0x7f); }

double E5M2ToDouble(uint8_t code) {
  const int magnitude = code & 0x7f;
  if (magnitude > 0x7c) return std::nan("");
  const double value = magnitude == 0x7c ? std::numeric_limits<double>::infinity() : E5M2Values()[magnitude];
  return std::copysign(value, code >> 7 ? -1.0 : 1.0);
}
uint8_t DoubleToE5M2(double value) { return NearestCode(E5M2Values(), value, 0x7e); }

template <typename T>
T Extreme(T a, T b, bool want_min) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  if (a == b) return want_min == std::signbit(a) ? a : b;
  return (a < b) == want_min ? a : b;
}

template <typename T>
T FloatOp(T a, T b, ReduceOp op) {
  T result = 0;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      result = a + b;
      break;
    case ReduceOp::kProd:
      result = a * b;
      break;
    case ReduceOp::kMin:
      result = Extreme(a, b, true);
      break;
    case ReduceOp::kMax:
      result = Extreme(a, b, false);
      break;
    default:
      break;
  }
  return std::isnan(result) ? std::numeric_limits<T>::quiet_NaN() : result;
}

template <typename T>
T IntOp(T a, T b, ReduceOp op) {
  using U = std::common_type_t<std::make_unsigned_t<T>, unsigned>;  // Wraps around; less would become an int.
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    case ReduceOp::kProd:
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    case ReduceOp::kMin:
      return a < b ? a : b;
    case ReduceOp::kMax:
      return a > b ? a : b;
    case ReduceOp::kBand:
      return static_cast<T>(a & b);
    case ReduceOp::kBor:
      return static_cast<T>(a | b);
    case ReduceOp::kBxor:
      return static_cast<T>(a ^ b);
  }
  return 0;
}

bool BoolOp(bool a, bool b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor:
      return a || b;
    case ReduceOp::kBxor:
      return a != b;
    default:
      return a && b;
  }
}

template <typename T>
T OneNaN(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

// Element i of `to`, which is a pair, as a op b.
template <typename T>
void ComplexStep(ReduceOp op, uint32_t divisor, const std::byte* a, const std::byte* b, std::byte* to, size_t i) {
  const T x = Get<T>(a, 2 * i), xi = Get<T>(a, 2 * i + 1), y = Get<T>(b, 2 * i), yi = Get<T>(b, 2 * i + 1);
  T real = op == ReduceOp::kProd ? x * y - xi * yi : x + y;
  T imaginary = op == ReduceOp::kProd ? x * yi + xi * y : xi + yi;
  if (divisor > 1) {
    real /= static_cast<T>(divisor);
    imaginary /= static_cast<T>(divisor);
  }
  Put(to, 2 * i, OneNaN(real));
  Put(to, 2 * i + 1, OneNaN(imaginary));
}

}  // namespace

void OracleStep(DataType type, ReduceOp op, uint32_t divisor, const std::byte* a, const std::byte* b, std::byte* to,
                size_t i) {
  const auto narrow = [&](auto widen, auto shrink) {
    using Code = decltype(shrink(0.0));
    Code value = shrink(
        FloatOp<float>(static_cast<float>(widen(Get<Code>(a, i))), static_cast<float>(widen(Get<Code>(b, i))), op));
    if (divisor > 1) value = shrink(static_cast<float>(widen(value)) / static_cast<float>(divisor));
    Put(to, i, value);
  };
  const auto plain = [&](auto zero, auto combine) {
    using T = decltype(zero);
    T value = combine(Get<T>(a, i), Get<T>(b, i));
    if (divisor > 1) {
      // Integers by way of one that holds both; 64-bit ones hold every divisor themselves.
      using Wide = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 8, int64_t, T>;
      value = static_cast<T>(static_cast<Wide>(value) / static_cast<Wide>(divisor));
    }
    if (value != value) value = static_cast<T>(std::numeric_limits<double>::quiet_NaN());
    Put(to, i, value);
  };
  switch (type) {
    case DataType::kInt32:
      return plain(int32_t{0}, [op](int32_t x, int32_t y) { return IntOp(x, y, op); });
    case DataType::kInt64:
      return plain(int64_t{0}, [op](int64_t x, int64_t y) { return IntOp(x, y, op); });
    case DataType::kInt8:
      return plain(int8_t{0}, [op](int8_t x, int8_t y) { return IntOp(x, y, op); });
    case DataType::kUint8:
      return plain(uint8_t{0}, [op](uint8_t x, uint8_t y) { return IntOp(x, y, op); });
    case DataType::kUint32:
      return plain(uint32_t{0}, [op](uint32_t x, uint32_t y) { return IntOp(x, y, op); });
    case DataType::kUint64:
      return plain(uint64_t{0}, [op](uint64_t x, uint64_t y) { return IntOp(x, y, op); });
    case DataType::kFloat8E4M3:
      return narrow(E4M3ToDouble, DoubleToE4M3);
    case DataType::kFloat8E5M2:
      return narrow(E5M2ToDouble, DoubleToE5M2);
    case DataType::kFloat32:
      return plain(0.0f, [op](float x, float y) { return FloatOp(x, y, op); });
    case DataType::kFloat64:
      return plain(0.0, [op](double x, double y) { return FloatOp(x, y, op); });
    case DataType::kFloat16:
      return narrow(HalfToDouble, DoubleToHalf);
    case DataType::kBFloat16:
      return narrow(BrainToDouble, DoubleToBrain);
    case DataType::kInt16:
      return plain(int16_t{0}, [op](int16_t x, int16_t y) { return IntOp(x, y, op); });
    case DataType::kUint16:
      return plain(uint16_t{0}, [op](uint16_t x, uint16_t y) { return IntOp(x, y, op); });
    case DataType::kBool:
      return Put(to, i, uint8_t{BoolOp(Get<uint8_t>(a, i) != 0, Get<uint8_t>(b, i) != 0, op)});
    case DataType::kComplex64:
      return ComplexStep<float>(op, divisor, a, b, to, i);
    case DataType::kComplex128:
      return ComplexStep<double>(op, divisor, a, b, to, i);
  }
}

void OracleScale(DataType type, double factor, const std::byte* a, std::byte* to, size_t i) {
  const auto narrow = [&](auto widen, auto shrink) {
    using Code = decltype(shrink(0.0));
    Put(to, i, shrink(static_cast<float>(widen(Get<Code>(a, i))) * static_cast<float>(factor)));
  };
  const auto whole = [&](auto zero) {
    using T = decltype(zero);
    using Wide = unsigned __int128;  // Which wraps around.
    Put(to, i, static_cast<T>(static_cast<Wide>(Get<T>(a, i)) * static_cast<Wide>(static_cast<__int128>(factor))));
  };
  const auto real = [&](auto zero, size_t part = 0, size_t parts = 1) {
    using T = decltype(zero);
    const size_t at = parts * i + part;
    Put(to, at, OneNaN(Get<T>(a, at) * static_cast<T>(factor)));
  };
  const auto complex = [&](auto zero) {
    real(zero, 0, 2);
    real(zero, 1, 2);
  };
  switch (type) {
    case DataType::kInt8:
      return whole(int8_t{0});
    case DataType::kUint8:
      return whole(uint8_t{0});
    case DataType::kInt32:
      return whole(int32_t{0});
    case DataType::kUint32:
      return whole(uint32_t{0});
    case DataType::kInt64:
      return whole(int64_t{0});
    case DataType::kUint64:
      return whole(uint64_t{0});
    case DataType::kFloat32:
      return real(0.0f);
    case DataType::kFloat64:
      return real(0.0);
    case DataType::kFloat16:
      return narrow(HalfToDouble, DoubleToHalf);
    case DataType::kBFloat16:
      return narrow(BrainToDouble, DoubleToBrain);
    case DataType::kFloat8E4M3:
      return narrow(E4M3ToDouble, DoubleToE4M3);
    case DataType::kFloat8E5M2:
      return narrow(E5M2ToDouble, DoubleToE5M2);
    case DataType::kInt16:
      return whole(int16_t{0});
    case DataType::kUint16:
      return whole(uint16_t{0});
    case DataType::kComplex64:
      return complex(0.0f);
    case DataType::kComplex128:
      return complex(0.0);
    case DataType::kBool:
      return;
  }
}

std::vector<Reduction> AllReductions() {
  std::vector<Reduction> all;
  for (int type = 0; type < kNumDataTypes; ++type) {
    for (int op = 0; op < kNumReduceOps; ++op) {
      const Reduction reduction{static_cast<DataType>(type), static_cast<ReduceOp>(op)};
      if (CanReduce(reduction.type, reduction.op)) all.push_back(reduction);
    }
  }
  return all;
}

Reduction AnyReduction(std::mt19937_64* random) {
  static const std::vector<Reduction> all = AllReductions();
  return all[(*random)() % all.size()];
}

Bytes FoldByOracle(DataType type, ReduceOp op, uint32_t divisor, const std::vector<Bytes>& sources, size_t count) {
  Bytes result = sources[0];
  for (size_t s = 1; s < sources.size(); ++s) {
    const uint32_t last_divisor = s + 1 == sources.size() ? divisor : 0;
    for (size_t i = 0; i < count; ++i)
      OracleStep(type, op, last_divisor, result.data(), sources[s].data(), result.data(), i);
  }
  return result;
}

Bytes RandomElements(DataType type, size_t count, std::mt19937_64* random) {
  Bytes bytes(count * TypeBytes(type));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((*random)());
  if (type == DataType::kBool) {
    for (std::byte& byte : bytes) byte &= std::byte{1};
    return bytes;
  }
  // Random bits are rarely zero, infinite or a tie: mix in such values.
  const uint64_t specials32[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00001,
                                 0xffa00000, 1,          0x3f800000, 0x4b800001};
  const uint64_t specials64[] = {0, 1ull << 63,    0x7ffull << 52, 0xfffull << 52, (0x7ffull << 52) + 5,
                                 1, 0x3ffull << 52};
  const size_t part = TypeAlignment(type);
  for (size_t i = 0; i < bytes.size() / part; i += 5) {
    if (part == 4) Put(bytes.data(), i, static_cast<uint32_t>(specials32[(*random)() % std::size(specials32)]));
    if (part == 8) Put(bytes.data(), i, specials64[(*random)() % std::size(specials64)]);
  }
  return bytes;
}

std::vector<int64_t> ReducerTargets() {
  std::vector<int64_t> targets;
  hwy::SetSupportedTargetsForTest(0);
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    hwy::SetSupportedTargetsForTest(target);
    // Another name: it was not compiled in, and something else would be tested twice.
    if (std::strcmp(HostReducerTarget(), hwy::TargetName(target)) == 0) targets.push_back(target);
  }
  hwy::SetSupportedTargetsForTest(0);
  // Its accesses are those of the same loops, and it takes most of the time there.
  if (kSanitized && targets.size() > 1) std::erase(targets, HWY_EMU128);
  return targets;
}

}  // namespace annulus
