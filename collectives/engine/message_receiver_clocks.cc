// When the receives from a peer have to end.
#include <algorithm>
#include <string>
#include <utility>

#include "collectives/engine/message_receiver.h"

namespace annulus {

Deadline SetNextDeadline(const MessagesConfig& config, int32_t tag, MessageList* waiting) {
  const auto asks = [tag](const QueuedMessage& each) { return each.message.tag == tag; };
  const auto next = std::ranges::find_if(*waiting, asks);
  if (next == waiting->end() || next->deadline != kNoDeadline) return kNoDeadline;
  SetDeadline(Now(), config.timeout, &*next);
  return next->deadline;
}

QueuedMessage* MessageReceiver::FirstTaken(const Message& like) {
  QueuedMessage* first = nullptr;
  const auto look = [&](MessageList* list) {
    for (QueuedMessage& each : *list) {
      const bool is_like = each.message.peer == like.peer && each.message.tag == like.tag;
      if (is_like && (first == nullptr || each.order < first->order)) first = &each;
    }
  };
  for (Held& each : lists_.taken) look(&each.receive);
  for (MessageList* list : {&lists_.current, &context_.offers_taken->told, &context_.offers_taken->untold}) look(list);
  return first;
}

void MessageReceiver::SetDeadlineOf(QueuedMessage* receive) {
  if (FirstTaken(receive->message) == nullptr) {
    SetDeadline(Now(), context_.config->timeout, receive);
    deadline_ = std::min(deadline_, receive->deadline);
  } else if (receive->begin == 0) {
    receive->begin = Now();
  }
}

void MessageReceiver::SetNextDeadlineLike(const Message& ended) {
  QueuedMessage* const first = FirstTaken(ended);
  if (first == nullptr) {
    MessageList* const waiting = ended.peer == kAnyPeer ? &context_.shared->any_waiting : &lists_.waiting;
    deadline_ = std::min(deadline_, SetNextDeadline(*context_.config, ended.tag, waiting));
  } else if (first->deadline == kNoDeadline) {
    SetDeadline(Now(), context_.config->timeout, first);
    deadline_ = std::min(deadline_, first->deadline);
  }
}

Status MessageReceiver::Late(Nanoseconds now, Call* failed) {
  if (now <= deadline_) return Status();
  deadline_ = kNoDeadline;
  const auto look = [&](const MessageList& list) {
    for (const QueuedMessage& each : list) {
      deadline_ = std::min(deadline_, each.deadline);
      if (now <= each.deadline) continue;
      *failed = CallOf(each.message, each.number != 0 ? each.number : number_ + 1, 0);
      failed->kind = CollectiveKind::kRecv;
      return LateStatus(each);
    }
    return Status();
  };
  for (const Held& each : lists_.taken) ANNULUS_RETURN_IF_ERROR(look(each.receive));
  const OffersTaken& offers = *context_.offers_taken;
  for (const MessageList* list :
       {&std::as_const(lists_.current), &offers.told, &offers.untold, &std::as_const(lists_.waiting)}) {
    ANNULUS_RETURN_IF_ERROR(look(*list));
  }
  return Status();
}

Status MessageReceiver::LateStatus(const QueuedMessage& receive) const {
  const int32_t tag = receive.number != 0 ? receive.tag : receive.message.tag;
  const std::string number = std::to_string(receive.number != 0 ? receive.number : number_ + 1);
  std::string what = "message #" + number;
  if (receive.number == 0 && tag != 0) what = "a message";
  if (tag > 0) what += receive.number != 0 ? " (tag " + std::to_string(tag) + ")" : " with tag " + std::to_string(tag);
  std::string text = "rank " + std::to_string(context_.peer) + " did not send " + what + " before its deadline";
  if (head_.is_blocked) text += kNoRoom;
  return {Code::kTimeout, text, context_.peer, 0};
}

Call MessageReceiver::Current() const {
  const OffersTaken& offers = *context_.offers_taken;
  for (const MessageList* list : {&lists_.current, &lists_.waiting, &offers.told, &offers.untold}) {
    if (list->empty()) continue;
    const QueuedMessage& first = list->front();
    Call call = CallOf(first.message, first.number != 0 ? first.number : number_ + 1, 0);
    call.kind = CollectiveKind::kRecv;
    return call;
  }
  return Call();
}

}  // namespace annulus
