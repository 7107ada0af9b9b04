// MemoryKind: what a link must be able to do to reach memory directly. A set of kinds says what it can.
//
// Threads: plain values.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace annulus {

enum class MemoryKind : uint8_t {
  kHost,    // The CPU reads and writes it.
  kDevice,  // Only its device does; the CPU must not touch it.
};

class MemoryKinds {
 public:
  constexpr MemoryKinds() = default;
  constexpr MemoryKinds(std::initializer_list<MemoryKind> kinds) {
    for (const MemoryKind kind : kinds) bits_ = static_cast<uint8_t>(bits_ | Bit(kind));
  }
  constexpr bool Has(MemoryKind kind) const { return (bits_ & Bit(kind)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const MemoryKinds&) const = default;

 private:
  static constexpr uint8_t Bit(MemoryKind kind) { return static_cast<uint8_t>(1U << static_cast<unsigned>(kind)); }

  uint8_t bits_ = 0;
};

}  // namespace annulus
