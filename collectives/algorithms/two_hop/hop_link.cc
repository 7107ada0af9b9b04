#include "collectives/algorithms/two_hop/hop_link.h"

namespace annulus {

HopLink::HopLink(int peer, Endpoint* endpoint, int window)
    : peer_(peer), sends_(endpoint, window), receives_(endpoint, window) {}

void HopLink::Start(const TwoHopSchedule* schedule, const Work* work) {
  schedule_ = schedule;
  work_ = work;
  sends_.Reset();
  receives_.Reset();
}

Status HopLink::Send(uint64_t folded, bool* moved) {
  for (;;) {
    for (uint64_t i = sends_.head; i != sends_.tail; ++i) {
      Flight& flight = sends_.At(i);
      flight.is_over = flight.post.sent();
      if (!flight.is_over && flight.post.send_posted()) ANNULUS_RETURN_IF_ERROR(flight.post.SendOutcome());
    }
    sends_.DropOver();
    // In order: what has not been posted holds up the rest.
    if (sends_.tail != sends_.head && !sends_.At(sends_.tail - 1).post.send_posted()) {
      ANNULUS_RETURN_IF_ERROR(sends_.At(sends_.tail - 1).post.Send(moved));
      if (!sends_.At(sends_.tail - 1).post.send_posted()) return Status();
    }
    if (sends_.is_full() || sends_.next == schedule_->items()) return Status();
    Step step;
    const bool is_empty = !schedule_->SendAt(peer_, sends_.next, &step);
    if (!is_empty && step.from_output && step.slice >= folded) return Status();
    ++sends_.next;
    *moved = true;
    if (is_empty) continue;
    Flight& flight = sends_.At(sends_.tail++);
    flight.is_over = false;
    flight.post.Start(work_, &step, nullptr);
  }
}

Status HopLink::Receive(bool* moved) {
  while (!receives_.is_full() && receives_.next < schedule_->items()) {
    Step step;
    const bool is_empty = !schedule_->ReceiveAt(peer_, receives_.next++, &step);
    *moved = true;
    if (is_empty) continue;
    Flight& flight = receives_.At(receives_.tail++);
    flight.slice = step.slice;
    flight.is_held = !step.store;
    flight.is_over = false;
    flight.post.Start(work_, nullptr, &step);
  }
  for (uint64_t i = receives_.head; i != receives_.tail; ++i) {
    Flight& flight = receives_.At(i);
    if (flight.is_over) continue;
    ANNULUS_RETURN_IF_ERROR(flight.post.Receive(moved));
    if (!flight.post.recv_posted()) break;  // In order.
    if (flight.is_held || !flight.post.came()) continue;
    flight.is_over = *moved = true;
    ANNULUS_RETURN_IF_ERROR(flight.post.Release());
  }
  receives_.DropOver();
  return Status();
}

const HopPeer* HopLink::Arrival(uint64_t slice) const {
  for (uint64_t i = receives_.head; i != receives_.tail; ++i) {
    const Flight& flight = receives_.At(i);
    if (flight.is_held && !flight.is_over && flight.slice == slice) return flight.post.came() ? &flight.post : nullptr;
  }
  return nullptr;
}

Status HopLink::Release(uint64_t slice) {
  for (uint64_t i = receives_.head; i != receives_.tail; ++i) {
    Flight& flight = receives_.At(i);
    if (!flight.is_held || flight.is_over || flight.slice != slice) continue;
    flight.is_over = true;
    return flight.post.Release();
  }
  return Status();
}

bool HopLink::waits() const {
  for (const Way* way : {&sends_, &receives_}) {
    for (uint64_t i = way->head; i != way->tail; ++i) {
      if (!way->At(i).is_over && way->At(i).post.waits()) return true;
    }
  }
  return false;
}

}  // namespace annulus
