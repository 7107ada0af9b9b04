// ByteWriter, FixedWriter, ByteReader: values as bytes. All formats of Annulus that may leave a host use them: integers
// are little-endian, texts follow their length. Each format has one writer and one reader made of these. What only
// ranks of one host say to each other may be a struct as it lies in memory.
//
// A reader never leaves its bytes, whatever they contain: after the first read beyond the end, or of a text that is too
// long, ok() is false and all further reads return zeros. So a format is read to its end first, and checked once,
// there.
//
// Threads: values; one at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"

namespace annulus {

// Every machine that Annulus runs on is little-endian, so values have the same byte order in memory and in the format.
static_assert(std::endian::native == std::endian::little, "a big-endian machine needs byte swaps here");

template <class Number>
inline void StoreLittle(std::byte* to, Number value) {
  std::memcpy(to, &value, sizeof(value));
}

template <class Number>
inline Number LoadLittle(const std::byte* from) {
  Number value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// The functions that both writers share; `Self` has Append(std::span<const std::byte>).
template <class Self>
class ValueWriter {
 public:
  Self& U8(uint8_t value) { return Put(value); }
  Self& U16(uint16_t value) { return Put(value); }
  Self& U32(uint32_t value) { return Put(value); }
  Self& U64(uint64_t value) { return Put(value); }
  Self& I32(int32_t value) { return Put(value); }
  Self& I64(int64_t value) { return Put(value); }
  Self& F64(double value) { return Put(value); }
  // Appends the bytes without a length.
  Self& Bytes(std::span<const std::byte> bytes) {
    self().Append(bytes);
    return self();
  }
  // Appends a length (u16), then at most `limit` bytes of `text`; the rest is cut off.
  Self& Text(std::string_view text, uint16_t limit) {
    const std::string_view kept = text.substr(0, limit);
    return U16(static_cast<uint16_t>(kept.size())).Bytes(std::as_bytes(std::span(kept)));
  }
  // Appends a length (u32), then all of `blob`.
  Self& Blob(std::string_view blob) {
    return U32(static_cast<uint32_t>(blob.size())).Bytes(std::as_bytes(std::span(blob)));
  }
  // Appends a length (u64), then all of `text`.
  Self& LongText(std::string_view text) { return U64(text.size()).Bytes(std::as_bytes(std::span(text))); }

 private:
  template <class Number>
  Self& Put(Number value) {
    std::byte bytes[sizeof(value)];
    StoreLittle(bytes, value);
    return Bytes(bytes);
  }
  Self& self() { return static_cast<Self&>(*this); }
};

// Grows as it is written to.
class ByteWriter : public ValueWriter<ByteWriter> {
 public:
  void Append(std::span<const std::byte> bytes) {
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Fills the caller's bytes, from the first one, and allocates nothing. Writing more than fits is a bug of the caller.
class FixedWriter : public ValueWriter<FixedWriter> {
 public:
  explicit FixedWriter(std::span<std::byte> to) : left_(to) {}

  void Append(std::span<const std::byte> bytes) {
    ANNULUS_CHECK(bytes.size() <= left_.size());
    if (!bytes.empty()) std::memcpy(left_.data(), bytes.data(), bytes.size());
    left_ = left_.subspan(bytes.size());
  }
  bool full() const { return left_.empty(); }

 private:
  std::span<std::byte> left_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : left_(bytes) {}
  explicit ByteReader(std::string_view bytes) : left_(std::as_bytes(std::span(bytes))) {}

  uint8_t U8() { return Get<uint8_t>(); }
  uint16_t U16() { return Get<uint16_t>(); }
  uint32_t U32() { return Get<uint32_t>(); }
  uint64_t U64() { return Get<uint64_t>(); }
  int32_t I32() { return Get<int32_t>(); }
  int64_t I64() { return Get<int64_t>(); }
  double F64() { return Get<double>(); }
  // Reads as many bytes as `to` has, without a length; zeros once ok() is false.
  void Bytes(std::span<std::byte> to) {
    const std::span<const std::byte> from = Next(to.size());
    if (from.empty()) {
      std::fill(to.begin(), to.end(), std::byte{0});
    } else {
      std::memcpy(to.data(), from.data(), from.size());
    }
  }
  std::string Text(uint16_t limit) { return TextOf(U16(), limit); }
  std::string Blob(size_t limit) { return TextOf(U32(), limit); }
  std::string LongText() { return TextOf(U64(), std::numeric_limits<uint64_t>::max()); }

  bool ok() const { return ok_; }
  // Whether everything was read, and nothing beyond the end: true at the end of a well-formed message.
  bool done() const { return ok_ && left_.empty(); }

 private:
  // The next `bytes` bytes; none once there were too few.
  std::span<const std::byte> Next(uint64_t bytes) {
    ok_ = ok_ && bytes <= left_.size();
    if (!ok_) return {};
    const std::span<const std::byte> taken = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return taken;
  }

  template <class Number>
  Number Get() {
    const std::span<const std::byte> taken = Next(sizeof(Number));
    return taken.empty() ? Number{} : LoadLittle<Number>(taken.data());
  }

  std::string TextOf(uint64_t bytes, uint64_t limit) {
    ok_ = ok_ && bytes <= limit;
    const std::span<const std::byte> taken = Next(bytes);
    return std::string(reinterpret_cast<const char*>(taken.data()), taken.size());
  }

  std::span<const std::byte> left_;
  bool ok_ = true;
};

}  // namespace annulus
