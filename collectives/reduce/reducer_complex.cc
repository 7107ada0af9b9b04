// The host reducer's products of complex numbers. Compiled once: sums, which are what programs reduce, are those of
// floats.
#include <cmath>
#include <cstring>
#include <limits>

#include "collectives/reduce/reducer_kernels.h"

namespace annulus {
namespace {

template <typename T>
struct Complex {
  T real;
  T imaginary;
};

template <typename T>
T Canonical(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

// Each product and each sum is rounded, and no infinity is repaired as C's own multiplication would.
template <typename T>
Complex<T> Product(Complex<T> a, Complex<T> b) {
  return {Canonical(a.real * b.real - a.imaginary * b.imaginary),
          Canonical(a.real * b.imaginary + a.imaginary * b.real)};
}

template <typename T>
void Multiply(const Pass& pass) {
  for (size_t at = 0; at < pass.count * sizeof(Complex<T>); at += sizeof(Complex<T>)) {
    Complex<T> left, right;
    std::memcpy(&left, pass.left + at, sizeof left);
    std::memcpy(&right, pass.right + at, sizeof right);
    const Complex<T> product = Product(left, right);
    for (std::byte* const dst : pass.dst) {
      if (dst != nullptr) std::memcpy(dst + at, &product, sizeof product);
    }
  }
}

}  // namespace

void MultiplyComplex(const Pass& pass, DataType type) {
  return type == DataType::kComplex64 ? Multiply<float>(pass) : Multiply<double>(pass);
}

}  // namespace annulus
