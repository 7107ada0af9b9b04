// The crafted values and their reductions, computed independently of the library's reducer.
//
// Threads: see perf_inputs.h.
#include "bench/perf/perf_inputs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace annulus::perf {
namespace {

// So many ranks contribute more than a sign to a product: |3^4| still fits bfloat16's 8 bits of precision.
constexpr int kProductRanks = 4;
// Integers up to here are plenty for the wide float types, and their sums stay far from any overflow.
constexpr int kMaxSignificandBits = 40;

uint64_t Mix(uint64_t x) {  // The finaliser of splitmix64 (Steele, Lea, Flood 2014).
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t Hash(uint64_t rank, uint64_t element, uint64_t seed) {
  return Mix(Mix(Mix(seed + 0x9e3779b97f4a7c15u) + element) + rank);
}

// Rounds to nearest even, keeping `drop` bits fewer.
uint32_t RoundShift(uint32_t bits, int drop) {
  const uint32_t half = (1u << (drop - 1)) - 1 + ((bits >> drop) & 1);
  return (bits + half) >> drop;
}

// Element types as this file computes with them: integers wrap in uint64_t, floats are exact in double.
template <typename Storage>
struct IntType {
  using Wide = uint64_t;
  using Stored = Storage;
  static constexpr bool kInteger = true;
  static constexpr int kSignificandBits = 0;
  static Stored Encode(Wide value) { return static_cast<Stored>(value); }
  static Stored EncodeAverage(Wide sum, int nranks) {
    using Wide64 = std::conditional_t<std::is_signed_v<Stored>, int64_t, uint64_t>;
    return static_cast<Stored>(static_cast<Wide64>(static_cast<Stored>(sum)) / static_cast<Wide64>(nranks));
  }
};

template <typename Storage, int kBits>
struct NativeFloat {
  using Wide = double;
  using Stored = Storage;
  static constexpr bool kInteger = false;
  static constexpr int kSignificandBits = std::min(kBits, kMaxSignificandBits);
  static Stored Encode(Wide value) { return static_cast<Stored>(value); }
  static Stored EncodeAverage(Wide sum, int nranks) { return static_cast<Stored>(sum) / static_cast<Stored>(nranks); }
};

struct BFloat16 {
  using Wide = double;
  using Stored = uint16_t;
  static constexpr bool kInteger = false;
  static constexpr int kSignificandBits = 8;
  static Stored FromFloat(float value) { return static_cast<Stored>(RoundShift(std::bit_cast<uint32_t>(value), 16)); }
  static Stored Encode(Wide value) { return FromFloat(static_cast<float>(value)); }
  static Stored EncodeAverage(Wide sum, int nranks) {
    return FromFloat(static_cast<float>(sum) / static_cast<float>(nranks));
  }
};

struct Float16 {
  using Wide = double;
  using Stored = uint16_t;
  static constexpr bool kInteger = false;
  static constexpr int kSignificandBits = 11;
  static Stored FromFloat(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000;
    const float magnitude = std::fabs(value);
    // Below 2^-14 binary16 counts in steps of 2^-24; nearbyint rounds to even.
    if (magnitude < 0x1p-14f)
      return static_cast<Stored>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p24f)));
    return static_cast<Stored>(sign | RoundShift((bits & 0x7fffffff) - (112u << 23), 13));
  }
  static Stored Encode(Wide value) { return FromFloat(static_cast<float>(value)); }
  static Stored EncodeAverage(Wide sum, int nranks) {
    return FromFloat(static_cast<float>(sum) / static_cast<float>(nranks));
  }
};

// The OCP formats: kMantissa stored bits below the leading one, exponents with the bias kBias. No value here comes near
// the largest one.
template <int kMantissa, int kBias>
struct Float8 {
  using Wide = double;
  using Stored = uint8_t;
  static constexpr bool kInteger = false;
  static constexpr int kSignificandBits = kMantissa + 1;
  static Stored Encode(Wide value) {
    const Stored sign = std::signbit(value) ? 0x80 : 0;
    if (value == 0) return sign;
    const int exponent = std::max(std::ilogb(value), 1 - kBias);
    // In units of the last place; nearbyint rounds to even. A carry into the exponent is the next number's code.
    const double units = std::nearbyint(std::ldexp(std::fabs(value), kMantissa - exponent));
    return static_cast<Stored>(sign | (((exponent + kBias - 1) << kMantissa) + static_cast<int>(units)));
  }
  static Stored EncodeAverage(Wide sum, int nranks) {
    return Encode(static_cast<float>(sum) / static_cast<float>(nranks));
  }
};

using Int8 = IntType<int8_t>;
using Uint8 = IntType<uint8_t>;
using Int16 = IntType<int16_t>;
using Uint16 = IntType<uint16_t>;
using Int32 = IntType<int32_t>;
using Uint32 = IntType<uint32_t>;
using Int64 = IntType<int64_t>;
using Uint64 = IntType<uint64_t>;
using E4M3 = Float8<3, 7>;
using E5M2 = Float8<2, 15>;
using Float32 = NativeFloat<float, 24>;
using Float64 = NativeFloat<double, 53>;

// True for at most `active` ranks of each element, other ones from element to element.
bool IsActive(const InputSpec& spec, int rank, size_t element, int64_t active) {
  if (spec.nranks <= active) return true;
  const uint64_t shift = Hash(0, element, ~spec.seed);
  return static_cast<int64_t>((shift + static_cast<uint64_t>(rank)) % static_cast<uint64_t>(spec.nranks)) < active;
}

template <typename Type>
typename Type::Wide Value(const InputSpec& spec, int rank, size_t element) {
  const uint64_t hash = Hash(static_cast<uint64_t>(rank) + 1, element, spec.seed);
  if constexpr (Type::kInteger) {
    return spec.op == ANNULUS_PROD ? hash | 1 : hash;  // Odd factors: a product never collapses to zero.
  } else {
    const int64_t limit = int64_t{1} << Type::kSignificandBits;
    if (spec.op == ANNULUS_PROD) {
      constexpr double kFactors[] = {1, -1, 2, -2, 3, -3, 0.5, -0.5};
      constexpr double kPowers[] = {1, -1, 2, -2, 4, -4, 0.5, -0.5};  // For types that 3^4 does not fit.
      return (Type::kSignificandBits < 8
                  ? kPowers
                  : kFactors)[IsActive(spec, rank, element, kProductRanks) ? hash % 8 : hash % 2];
    }
    const bool adds = spec.op == ANNULUS_SUM || spec.op == ANNULUS_AVG;
    if (adds && !IsActive(spec, rank, element, limit)) return 0;
    // The sum of all magnitudes stays within the significand, so every partial sum is exact.
    const int64_t magnitude = adds ? std::max<int64_t>(1, limit / spec.nranks) : limit;
    return static_cast<double>(static_cast<int64_t>(hash % static_cast<uint64_t>(2 * magnitude + 1)) - magnitude);
  }
}

template <typename Type>
typename Type::Wide Combine(annulus_op_t op, typename Type::Wide a, typename Type::Wide b) {
  const auto less = [](auto x, auto y) {
    if constexpr (Type::kInteger) return static_cast<typename Type::Stored>(x) < static_cast<typename Type::Stored>(y);
    return x < y;
  };
  switch (op) {
    case ANNULUS_PROD:
      return a * b;
    case ANNULUS_MIN:
      return less(b, a) ? b : a;
    case ANNULUS_MAX:
      return less(a, b) ? b : a;
    default:  // ANNULUS_SUM and ANNULUS_AVG.
      break;
  }
  return a + b;
}

template <typename Type, typename Make>
Sequence Tabulate(const InputSpec& spec, Make make) {
  using Stored = typename Type::Stored;
  const size_t elements = std::min(spec.elements, kPeriod);
  std::vector<uint8_t> bytes(elements * sizeof(Stored));
  for (size_t i = 0; i < elements; ++i) {
    const Stored stored = make(i);
    std::memcpy(bytes.data() + i * sizeof(Stored), &stored, sizeof(Stored));
  }
  return {std::move(bytes), sizeof(Stored)};
}

template <typename Type>
Sequence InputOf(const InputSpec& spec, int rank) {
  return Tabulate<Type>(spec, [&](size_t i) { return Type::Encode(Value<Type>(spec, rank, i)); });
}

template <typename Type>
Sequence ReducedOf(const InputSpec& spec) {
  return Tabulate<Type>(spec, [&](size_t i) {
    auto result = Value<Type>(spec, 0, i);
    for (int rank = 1; rank < spec.nranks; ++rank) result = Combine<Type>(spec.op, result, Value<Type>(spec, rank, i));
    return spec.op == ANNULUS_AVG ? Type::EncodeAverage(result, spec.nranks) : Type::Encode(result);
  });
}

template <typename Visitor>
Sequence Dispatch(annulus_type_t type, Visitor visit) {
  switch (type) {
    case ANNULUS_INT32:
      return visit(Int32());
    case ANNULUS_INT64:
      return visit(Int64());
    case ANNULUS_FLOAT16:
      return visit(Float16());
    case ANNULUS_BFLOAT16:
      return visit(BFloat16());
    case ANNULUS_INT16:
      return visit(Int16());
    case ANNULUS_UINT16:
      return visit(Uint16());
    case ANNULUS_INT8:
      return visit(Int8());
    case ANNULUS_UINT8:
      return visit(Uint8());
    case ANNULUS_UINT32:
      return visit(Uint32());
    case ANNULUS_UINT64:
      return visit(Uint64());
    case ANNULUS_FLOAT8_E4M3:
      return visit(E4M3());
    case ANNULUS_FLOAT8_E5M2:
      return visit(E5M2());
    case ANNULUS_FLOAT32:
      return visit(Float32());
    default:  // ANNULUS_FLOAT64: options name no others.
      break;
  }
  return visit(Float64());
}

}  // namespace

void Sequence::Fill(size_t first, size_t count, void* out) const {
  auto* to = static_cast<uint8_t*>(out);
  const size_t period = bytes_.size() / width_;
  for (size_t done = 0; done < count;) {
    const size_t at = (first + done) % period;
    const size_t piece = std::min(count - done, period - at);
    std::memcpy(to + done * width_, bytes_.data() + at * width_, piece * width_);
    done += piece;
  }
}

int64_t Sequence::CountDifferent(size_t first, size_t count, const void* data) const {
  const auto* from = static_cast<const uint8_t*>(data);
  const size_t period = bytes_.size() / width_;
  int64_t different = 0;
  for (size_t done = 0; done < count;) {
    const size_t at = (first + done) % period;
    const size_t piece = std::min(count - done, period - at);
    const uint8_t* expected = bytes_.data() + at * width_;
    const uint8_t* actual = from + done * width_;
    if (std::memcmp(expected, actual, piece * width_) != 0) {
      for (size_t i = 0; i < piece; ++i)
        different += std::memcmp(expected + i * width_, actual + i * width_, width_) != 0;
    }
    done += piece;
  }
  return different;
}

Sequence MakeInput(const InputSpec& spec, int rank) {
  return Dispatch(spec.type, [&](auto type) { return InputOf<decltype(type)>(spec, rank); });
}

Sequence MakeReduced(const InputSpec& spec) {
  return Dispatch(spec.type, [&](auto type) { return ReducedOf<decltype(type)>(spec); });
}

}  // namespace annulus::perf
