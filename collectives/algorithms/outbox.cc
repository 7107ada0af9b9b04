#include "collectives/algorithms/outbox.h"

#include "collectives/algorithms/work.h"

namespace annulus {

void Outbox::Reset() {
  posted_ = 0;
  slot_ = nullptr;
  unsent_ = -1;
}

int Outbox::FirstPending() const {
  for (size_t i = 0; i < posted_; ++i) {
    if (sends_[i].send.code != Code::kOk) return sends_[i].to;
  }
  return -1;
}

Status Outbox::Outcome() const {
  for (size_t i = 0; i < posted_; ++i) {
    ANNULUS_RETURN_IF_ERROR(Work::OutcomeOfSend(sends_[i].send.code, sends_[i].to));
  }
  return Status();
}

void Outbox::CountAll(Monitor* monitor) const {
  for (size_t i = 0; i < posted_; ++i) monitor->Sent(sends_[i].to, sends_[i].send.bytes);
}

}  // namespace annulus
