#include "transport/wire/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace annulus {

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
  // ISA-L takes and returns the bare register; the checksum is its complement. It takes the length as an int and the
  // input as not const.
  constexpr size_t kMaxPiece = size_t{1} << 30;
  uint32_t reg = ~crc;
  while (!bytes.empty()) {
    const std::span<const std::byte> piece = bytes.first(std::min(bytes.size(), kMaxPiece));
    reg = crc32_iscsi(reinterpret_cast<unsigned char*>(const_cast<std::byte*>(piece.data())),
                      static_cast<int>(piece.size()), reg);
    bytes = bytes.subspan(piece.size());
  }
  return ~reg;
}

}  // namespace annulus
