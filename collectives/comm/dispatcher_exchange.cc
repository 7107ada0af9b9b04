// The exchanges of Dispatcher: a send and a receive that one thread makes together and waits for.
#include <array>

#include "collectives/comm/dispatcher.h"

namespace annulus {

Status Dispatcher::RunExchange(const Exchange& calls) {
  if (by_priority()) ANNULUS_RETURN_IF_ERROR(StartProgressThread());
  std::array<Request*, 2> made;
  ANNULUS_RETURN_IF_ERROR(requests_->MakeWithin({}, calls, false, made.data()));
  Requests::Unqueued unqueued(requests_, made);
  NoteLabels(made);
  unqueued.Keep();
  const auto [send, recv] = made;
  if (!StartsBoth(send, recv)) {
    Queue(send);
    Queue(recv);
  }
  // The receive first: meanwhile a send that was lent ends.
  for (Request* const each : {recv, send}) {
    LookFor(each);
    Help(each, kNoDeadline);
  }
  const Status sent = requests_->Release(send);
  const Status received = requests_->Release(recv);
  return received.ok() ? sent : received;
}

bool Dispatcher::StartsBoth(Request* send, Request* recv) {
  if (!IsGoodMessage(send->arguments) || !IsGoodMessage(recv->arguments)) return false;
  CallQueue::Turn turn(queue_, CallQueue::Turn::OnlyLock());
  if (by_priority() || !MaySubmitNow(turn)) return false;
  if (StartSend(&turn, send)) requests_->MarkDone(send, Code::kOk);
  turn.PostMessage(recv, false);  // This thread looks for it at once.
  return true;
}

void Dispatcher::LookFor(Request* request) {
  for (int looks = 1;; ++looks) {
    CallQueue::Turn turn(queue_, CallQueue::Turn::OnlyLock());
    if (request->done || by_priority() || !turn.MayDriveMessages() || failures_->ended()) return;
    const AtOnce moved = LookForMessages(&turn, request, MessagePolls());
    if (moved != AtOnce::kNo || !MayLookOn(turn, *request, looks)) return;
  }
}

}  // namespace annulus
