// ByteWriter, ByteReader: the encoding of control messages; little-endian, and every read checked against the end.
//
// Threads: values; one at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace annulus {

// What a control connection carries. A message is a length (u32: the bytes after it), its type (u8) and its body; the
// bodies are specified in docs/wire_protocol.md. Numbers are never reused.
enum class MessageType : uint8_t {
  kJoin = 1,     // rank -> rank 0: my blob, and what I believe of the job.
  kTable = 2,    // rank 0 -> rank: the job's id and everyone's blob.
  kRefused = 3,  // rank 0 -> rank: why there will be no communicator.
  kReport = 4,   // rank -> rank 0: a collective failed here.
  kQuery = 5,    // rank 0 -> rank: what are you doing?
  kAnswer = 6,   // rank -> rank 0: this.
  kVerdict = 7,  // rank 0 -> rank: the end. rank -> rank 0: I had to settle on this myself.
  kGoodbye = 8,  // Both ways: I leave; my connection closes next.
  kDoubt = 9,    // rank -> rank 0: I wait long; do we all agree?
};

constexpr size_t kMessageHeaderBytes = 5;

class ByteWriter {
 public:
  void U8(uint8_t value) { Integer(value, 1); }
  void U16(uint16_t value) { Integer(value, 2); }
  void U32(uint32_t value) { Integer(value, 4); }
  void U64(uint64_t value) { Integer(value, 8); }
  void I32(int32_t value) { Integer(static_cast<uint32_t>(value), 4); }
  // A length (u16), then at most `limit` bytes of `text`; what is longer is cut.
  void Text(std::string_view text, uint16_t limit) {
    const std::string_view kept = text.substr(0, limit);
    U16(static_cast<uint16_t>(kept.size()));
    bytes_.append(kept);
  }
  // A length (u32), then all of `blob`.
  void Blob(std::string_view blob) {
    U32(static_cast<uint32_t>(blob.size()));
    bytes_.append(blob);
  }

  const std::string& bytes() const { return bytes_; }

 private:
  void Integer(uint64_t value, int width) {
    for (int i = 0; i < width; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
  }

  std::string bytes_;
};

// After the first read beyond the end, or of a text that is too long, ok() is false and all reads give zeros.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint8_t U8() { return static_cast<uint8_t>(Integer(1)); }
  uint16_t U16() { return static_cast<uint16_t>(Integer(2)); }
  uint32_t U32() { return static_cast<uint32_t>(Integer(4)); }
  uint64_t U64() { return Integer(8); }
  int32_t I32() { return static_cast<int32_t>(U32()); }
  std::string Text(uint16_t limit) { return Take(U16(), limit); }
  std::string Blob(size_t limit) { return Take(U32(), limit); }

  bool ok() const { return ok_; }
  // Everything was read, and nothing too much: what a well-formed message looks like at its end.
  bool done() const { return ok_ && bytes_.empty(); }

 private:
  uint64_t Integer(size_t width) {
    if (!ok_ || bytes_.size() < width) {
      ok_ = false;
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < width; ++i) value |= std::to_integer<uint64_t>(bytes_[i]) << (8 * i);
    bytes_ = bytes_.subspan(width);
    return value;
  }

  std::string Take(size_t bytes, size_t limit) {
    if (!ok_ || bytes > limit || bytes > bytes_.size()) {
      ok_ = false;
      return {};
    }
    std::string taken(reinterpret_cast<const char*>(bytes_.data()), bytes);
    bytes_ = bytes_.subspan(bytes);
    return taken;
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace annulus
