#include "collectives/algorithms/message/message_schedule.h"

#include <algorithm>

#include "collectives/core/chunk_schedule.h"

namespace annulus {

MessageSchedule::MessageSchedule(const ScheduleParams& params) : p_(params) { size_ = SlicesOf(p_, {0, p_.count}); }

bool MessageSchedule::At(size_t index, Step* step) const {
  *step = Step();
  step->count = p_.count;
  const bool sends = p_.kind == CollectiveKind::kSend;
  step->slice = index;
  step->input_offset = step->output_offset = index * p_.slice_bytes;
  step->bytes = std::min(p_.slice_bytes, p_.count * p_.element_bytes - step->input_offset);
  step->store = !sends;
  (sends ? step->send_to : step->recv_from) = p_.root;
  return true;
}

}  // namespace annulus
