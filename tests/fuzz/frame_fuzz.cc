// Fuzz target: ParseFrameHeader takes any 64 bytes, and what it accepts is exactly what WriteFrameHeader writes.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace annulus;
  if (size < 1) return 0;
  std::byte bytes[kFrameHeaderBytes] = {};
  std::memcpy(bytes, data + 1, size - 1 < sizeof(bytes) ? size - 1 : sizeof(bytes));
  // Random bytes hardly ever carry the right checksum, so it is repaired: what lies behind it must be safe too.
  const bool repair = (data[0] & 1) != 0;
  if (repair) StoreLittle<uint32_t>(bytes + 60, Crc32c({bytes, 60}));
  FrameHeader header;
  const Status status = ParseFrameHeader(bytes, &header);
  if (!status.ok()) {
    ANNULUS_CHECK(status.code() == Code::kProtocol && !status.message().empty() && header == FrameHeader());
    return 0;
  }
  ANNULUS_CHECK(header.bytes <= kMaxFramePayload);
  std::byte again[kFrameHeaderBytes];
  WriteFrameHeader(header, again);
  ANNULUS_CHECK(std::memcmp(bytes, again, sizeof(again)) == 0);
  return 0;
}
