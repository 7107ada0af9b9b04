#include "collectives/control/message_stream.h"

#include "base/bytes.h"

namespace annulus {

EncodedMessage EncodeMessage(MessageType type, const std::string& body) {
  ByteWriter out;
  out.U32(static_cast<uint32_t>(body.size() + 1));
  out.U8(static_cast<uint8_t>(type));
  return std::make_shared<const std::string>(out.bytes() + body);
}

}  // namespace annulus
