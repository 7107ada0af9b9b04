// Floats of 8 and 16 bits, to float32 and back, for host and device. As the host reducer converts them: to nearest
// even, NaN becomes the type's canonical one, and results of 8 bits saturate (docs/decisions/0015-float8-saturates.md).
//
// Threads: plain functions.
#pragma once

#include <cstdint>

#include "cuda_kernels/portable.h"

namespace annulus::cuda {

template <class To, class From>
ANNULUS_PORTABLE To BitsAs(From from) {
  return __builtin_bit_cast(To, from);
}

struct Brain {
  using Stored = uint16_t;
  static constexpr Stored kNaN = 0x7fc0;

  static ANNULUS_PORTABLE float Widen(Stored code) { return BitsAs<float>(static_cast<uint32_t>(code) << 16); }
  static ANNULUS_PORTABLE Stored Narrow(float value) {
    const uint32_t bits = BitsAs<uint32_t>(value);
    return value != value ? kNaN : static_cast<Stored>((bits + (bits >> 16 & 1) + 0x7fff) >> 16);
  }
};

struct Half {
  using Stored = uint16_t;
  static constexpr Stored kNaN = 0x7e00;

#if defined(__CUDA_ARCH__)  // One instruction each, which rounds to nearest even and keeps subnormals.
  static ANNULUS_PORTABLE float Widen(Stored code) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
    return value;
  }
  static ANNULUS_PORTABLE Stored Narrow(float value) {
    Stored code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
    return value != value ? kNaN : code;
  }
#else
  static ANNULUS_PORTABLE float Widen(Stored code) {
    const uint32_t sign = (code & 0x8000u) << 16;
    const uint32_t magnitude = (code & 0x7fffu) << 13;
    // 2^112 moves the exponent's bias from 15 to 127, subnormals included.
    const float scaled = BitsAs<float>(magnitude) * 0x1p112f;
    const uint32_t bits = (code & 0x7c00u) == 0x7c00u ? magnitude | 0x7f800000u : BitsAs<uint32_t>(scaled);
    return BitsAs<float>(sign | bits);
  }
  static ANNULUS_PORTABLE Stored Narrow(float value) {
    const uint32_t bits = BitsAs<uint32_t>(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return kNaN;
    if (magnitude >= 0x477ff000u) return static_cast<Stored>(sign | 0x7c00u);  // 65520 and more.
    if (magnitude < 0x38800000u) {
      // Subnormal: the last bit of the sum with 0.5 weighs as much as that of the result.
      const uint32_t aligned = BitsAs<uint32_t>(BitsAs<float>(magnitude) + 0.5f) - BitsAs<uint32_t>(0.5f);
      return static_cast<Stored>(sign | aligned);
    }
    const uint32_t rounded = magnitude + (magnitude >> 13 & 1) + 0xfffu;
    return static_cast<Stored>(sign | (rounded - 0x38000000u) >> 13);
  }
#endif
};

// The two formats of the OCP 8-bit Floating Point Specification.
struct E4M3 {
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  static constexpr float kLargest = 448;
  static constexpr uint8_t kLastNumber = 0x7e;  // The largest code that is a number, infinity being one.
  static constexpr uint8_t kLastFinite = 0x7e;
  static constexpr uint8_t kNaN = 0x7f;
  static constexpr bool kHasInfinity = false;
};

struct E5M2 {
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr float kLargest = 57344;
  static constexpr uint8_t kLastNumber = 0x7c;
  static constexpr uint8_t kLastFinite = 0x7b;
  static constexpr uint8_t kNaN = 0x7e;
  static constexpr bool kHasInfinity = true;
};

template <class Format>
struct Float8 : Format {
  using Stored = uint8_t;
  using Format::kNaN;
  static constexpr int kBiasChange = 127 - Format::kBias;
  static constexpr int kShift = 23 - Format::kMantissaBits;

  static ANNULUS_PORTABLE float Widen(Stored code) {
    const uint32_t sign = (code & 0x80u) << 24;
    const uint32_t magnitude = code & 0x7fu;
    const uint32_t aligned = magnitude << kShift;
    uint32_t bits = BitsAs<uint32_t>(BitsAs<float>(aligned) * PowerOfTwo(kBiasChange));
    if (magnitude > Format::kLastFinite) {
      bits = Format::kHasInfinity && magnitude == Format::kLastNumber ? 0x7f800000u : 0x7fc00000u;
    }
    return BitsAs<float>(sign | bits);
  }
  static ANNULUS_PORTABLE Stored Narrow(float value) {
    if (value != value) return kNaN;
    const uint32_t sign = BitsAs<uint32_t>(value) >> 24 & 0x80u;
    const float magnitude = BitsAs<float>(BitsAs<uint32_t>(value) & 0x7fffffffu);
    const float clamped = magnitude > Format::kLargest ? Format::kLargest : magnitude;
    // The power of two below the number, or that of the smallest normal number: times 2^kShift its last bit weighs as
    // much as that of the result, so that adding it rounds there.
    const uint32_t exponent = BitsAs<uint32_t>(clamped) & 0x7f800000u;
    constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(kBiasChange + 1) << 23;
    const uint32_t floor = exponent < kSmallestNormal ? kSmallestNormal : exponent;
    const float magic = BitsAs<float>(floor + (static_cast<uint32_t>(kShift) << 23));
    const float rounded = (clamped + magic) - magic;
    // Now exact: subnormals and normal numbers alike have their code in the upper bits of the number with our bias.
    const uint32_t bits = BitsAs<uint32_t>(rounded * PowerOfTwo(-kBiasChange));
    return static_cast<Stored>(sign | bits >> kShift);
  }

 private:
  static constexpr ANNULUS_PORTABLE float PowerOfTwo(int exponent) {
    return BitsAs<float>(static_cast<uint32_t>(127 + exponent) << 23);
  }
};

}  // namespace annulus::cuda
