// The encoding of activities; docs/wire_protocol.md, "Rendezvous and control".
#include "collectives/control/control_role.h"

namespace annulus {

void WriteActivity(const Activity& activity, ByteWriter* out) {
  out->U64(activity.sequence);
  out->U8(activity.inside);
  out->U8(static_cast<uint8_t>(activity.recent.size()));
  for (const Call& call : activity.recent) WriteCall(call, out);
}

bool ReadActivity(ByteReader* in, Activity* activity) {
  Activity read;
  read.sequence = in->U64();
  const uint8_t inside = in->U8();
  const uint8_t calls = in->U8();
  if (!in->ok() || inside > 1 || calls > ActivityRecorder::kRemembered) return false;
  read.inside = inside;
  read.recent.resize(calls);
  for (Call& call : read.recent) {
    if (!ReadCall(in, &call)) return false;
  }
  *activity = std::move(read);
  return true;
}

}  // namespace annulus
