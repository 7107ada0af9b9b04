#include "collectives/engine/message_sender.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "collectives/algorithms/slice_tag.h"
#include "collectives/algorithms/work.h"

namespace annulus {
namespace {

// Bytes that links hold, so that they are sent without waiting for the receive, as users of blocking sends expect.
size_t LinkBytes(const PlanSettings& plan) { return static_cast<size_t>(plan.slots) * DirectSliceBytes(plan); }

// What a note has of a message's number.
uint32_t NoteOf(uint64_t number) { return static_cast<uint32_t>(number); }

}  // namespace

MessageSender::MessageSender(const MessageContext& context)
    : context_(context), runner_(context.endpoint, context.plan()), work_(CommonWork(context)) {}

void MessageSender::Post(const Message& message) {
  context_.shared->pool.Post(message, &lists_.queue);
  if (message.tag != 0) uses_tags_ = true;
  is_idle_ = false;
}

AtOnce MessageSender::SendOrBegin(const Message& message) {
  if (uses_tags_ && BytesOf(message) > EagerBytesWithTags(context_.plan())) return AtOnce::kNo;  // It is offered.
  // Before anything is sent, since it may need memory.
  if (message.cookie == nullptr || !context_.shared->pool.Prepare()) return AtOnce::kNo;
  const Call call = CallOf(message, number_ + 1, 0);
  const AtOnce moved = runner_.SendAtOnce(call, message.input.data, BytesOf(message));
  if (moved == AtOnce::kNo) return BeginSlices(message);
  CountSent(BytesOf(message));
  if (moved == AtOnce::kDone) return moved;
  KeepBegun(message);
  work_.call = call;
  return moved;
}

AtOnce MessageSender::BeginSlices(const Message& message) {
  const size_t most = std::min(kMostBegunBytes, EagerBytes(context_.plan()));
  if (!context_.endpoint->limits().shares_memory || BytesOf(message) > most) return AtOnce::kNo;
  ++number_;
  KeepBegun(message);
  StartCurrent(SliceBytesOf(message));
  // The first copies into slots, and the second sends what is there.
  return EndBegun() != nullptr || EndBegun() != nullptr ? AtOnce::kDone : AtOnce::kBegun;
}

void MessageSender::KeepBegun(const Message& message) {
  context_.shared->pool.Add(message, &lists_.current);
  QueuedMessage& current = lists_.current.front();
  current.number = number_;
  current.begin = Now();
  SetNextDeadline(0);
  is_idle_ = false;
  has_begun_ = true;
}

void* MessageSender::EndBegun() {
  bool moved = false;
  try {
    if (!runner_.moves_link() && !context_.endpoint->Progress(&moved).ok()) return nullptr;
    if (!runner_.Advance(&moved).ok() || !runner_.done()) return nullptr;
  } catch (const std::bad_alloc&) {  // The link's news may be lost.
    lacks_memory_ = true;
    return nullptr;
  }
  void* const cookie = TakeSent().message.cookie;
  UpdateIdle();
  return cookie;
}

uint32_t MessageSender::NextGrant() {
  if (context_.offers_taken->untold.empty()) return 0;
  const uint32_t note = NoteOf(context_.offers_taken->untold.front().number);
  if (note != 0) MoveFirst(&context_.offers_taken->untold, &context_.offers_taken->told);
  return note;
}

void MessageSender::OnGrant(uint32_t number) {
  const auto is_it = [number](const QueuedMessage& each) { return NoteOf(each.number) == number; };
  const auto found = std::ranges::find_if(lists_.offered, is_it);
  if (found == lists_.offered.end()) {
    is_broken_ = true;
    return;
  }
  MoveMessage(&lists_.offered, found, &lists_.granted);
  is_idle_ = false;
}

Status MessageSender::Advance(bool* moved) {
  if (lacks_memory_) return {Code::kOutOfMemory, "no memory was left for what a link had to tell"};
  if (is_broken_) return BrokenProtocol(context_.peer, "a grant for a message that was not offered");
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    if (lists_.current.empty()) {
      ANNULUS_RETURN_IF_ERROR(BeginNext(&goes_on));
    } else {
      ANNULUS_RETURN_IF_ERROR(runner_.Advance(moved));
      goes_on = runner_.done();
      if (goes_on) Finish();
    }
    if (goes_on) *moved = true;
  }
  UpdateIdle();
  return Status();
}

void MessageSender::UpdateIdle() {
  is_idle_ =
      lists_.queue.empty() && lists_.granted.empty() && lists_.current.empty() && context_.offers_taken->untold.empty();
}

Status MessageSender::BeginNext(bool* began) {
  if (!context_.offers_taken->untold.empty()) {
    Call grant;
    grant.sequence = context_.offers_taken->untold.front().number;
    ANNULUS_RETURN_IF_ERROR(PostEmpty(MessageForm::kGrant, grant, 0, began));
    if (*began) MoveFirst(&context_.offers_taken->untold, &context_.offers_taken->told);
    return Status();
  }
  const bool was_granted = !lists_.granted.empty();
  MessageList* const from = was_granted ? &lists_.granted : &lists_.queue;
  if (from->empty() || !from->front().message.IsReady()) return Status();
  QueuedMessage& next = from->front();
  if (next.number == 0) {
    next.number = ++number_;
    next.tag = next.message.tag;
    next.begin = Now();
    SetNextDeadline(next.tag);
  }
  const size_t eager_bytes = uses_tags_ ? EagerBytesWithTags(context_.plan()) : EagerBytes(context_.plan());
  const bool is_offered = !was_granted && BytesOf(next.message) > eager_bytes;
  const size_t slice_bytes = is_offered ? 0 : SliceBytesOf(next.message);
  if (was_granted || is_offered || next.tag != 0) {
    const MessageForm form = was_granted  ? MessageForm::kBegin
                             : is_offered ? MessageForm::kOffer
                                          : MessageForm::kNotice;
    ANNULUS_RETURN_IF_ERROR(PostEmpty(form, CallOf(next.message, next.number, next.tag), slice_bytes, began));
    if (!*began) return Status();
  }
  *began = true;
  MoveFirst(from, is_offered ? &lists_.offered : &lists_.current);
  if (!is_offered) StartCurrent(slice_bytes);
  return Status();
}

void MessageSender::SetNextDeadline(int32_t tag) {
  QueuedMessage* first = nullptr;
  for (MessageList* list : {&lists_.current, &lists_.granted, &lists_.offered, &lists_.queue}) {
    for (QueuedMessage& each : *list) {
      if (each.number == 0) break;  // Nor have those behind it in the queue.
      if (each.tag == tag && (first == nullptr || each.number < first->number)) first = &each;
    }
  }
  if (first == nullptr || first->deadline != kNoDeadline) return;
  SetDeadline(Now(), context_.config->timeout, first);
  deadline_ = std::min(deadline_, first->deadline);
}

Status MessageSender::PostEmpty(MessageForm form, Call call, size_t slice_bytes, bool* posted) {
  for (const Send& sent : empty_.sends)
    ANNULUS_RETURN_IF_ERROR(Work::OutcomeOfSend(sent.code, context_.endpoint->peer()));
  const auto is_free = [](const Send& send) { return send.code != Code::kInProgress; };
  const auto send = std::ranges::find_if(empty_.sends, is_free);
  if (send == empty_.sends.end()) return Status();
  if (empty_.slot == nullptr) {
    Status acquired = context_.endpoint->AcquireSlot(0, &empty_.slot);
    if (acquired.would_block()) return Status();
    ANNULUS_RETURN_IF_ERROR(std::move(acquired));
  }
  call.kind = CollectiveKind::kSend;
  call.op = static_cast<ReduceOp>(form);
  *send = Send();
  send->tag = PackTag(call, {0, slice_bytes, static_cast<uint32_t>(MessageChannel(context_.plan()))});
  send->data = empty_.slot;
  Status accepted = context_.endpoint->PostSend(&*send);
  if (accepted.would_block()) return Status();
  ANNULUS_RETURN_IF_ERROR(std::move(accepted));
  empty_.slot = nullptr;
  *posted = true;
  return Status();
}

size_t MessageSender::SliceBytesOf(const Message& message) const {
  const Limits& limits = context_.endpoint->limits();
  const MemoryKind kind = KindOf(message.input.queue);
  // One copy by the receiver's device, which takes it as long whatever the size.
  const bool may_stay = kind == MemoryKind::kDevice && limits.shares_memory && limits.in_place.Has(kind) &&
                        BytesOf(message) > LinkBytes(context_.plan());
  const bool lends = kind == MemoryKind::kHost && runner_.AsksToLend(message.input.data, BytesOf(message));
  return lends || may_stay ? LentSliceBytes(context_.plan()) : DirectSliceBytes(context_.plan());
}

void MessageSender::StartCurrent(size_t slice_bytes) {
  const QueuedMessage& current = lists_.current.front();
  SetMessage(current.message, CallOf(current.message, current.number, current.tag), &work_);
  work_.sends_in_place = BytesOf(current.message) > LinkBytes(context_.plan());
  runner_.Start(ParamsOf(context_, current.message, slice_bytes), &work_, nullptr);
}

QueuedMessage MessageSender::TakeSent() {
  const QueuedMessage sent = lists_.current.front();
  TraceMessage(context_, sent);
  context_.shared->pool.Recycle(&lists_.current);
  has_begun_ = false;
  SetNextDeadline(sent.tag);
  return sent;
}

void MessageSender::Finish() {
  const QueuedMessage sent = TakeSent();
  context_.config->done(sent.message.cookie, context_.peer, sent.tag);
}

bool MessageSender::AwaitsStream() const { return !lists_.queue.empty() && !lists_.queue.front().message.IsReady(); }

Status MessageSender::Late(Nanoseconds now, Call* failed) {
  if (now <= deadline_) return Status();
  deadline_ = kNoDeadline;
  for (const MessageList* list : {&lists_.current, &lists_.granted, &lists_.offered, &lists_.queue}) {
    for (const QueuedMessage& each : *list) {
      if (now > each.deadline) {
        *failed = CallOf(each.message, each.number, 0);
        return {Code::kTimeout,
                "rank " + std::to_string(context_.peer) + " did not receive message #" + std::to_string(each.number) +
                    (each.tag != 0 ? " (tag " + std::to_string(each.tag) + ")" : "") + " before its deadline",
                context_.peer, 0};
      }
      deadline_ = std::min(deadline_, each.deadline);
    }
  }
  return Status();
}

Call MessageSender::Current() const {
  for (const MessageList* list : {&lists_.current, &lists_.granted, &lists_.offered, &lists_.queue}) {
    if (!list->empty()) return CallOf(list->front().message, list->front().number, 0);
  }
  return Call();
}

}  // namespace annulus
