#include "collectives/engine/message_receiver.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/check.h"
#include "collectives/algorithms/slice_tag.h"

namespace annulus {
namespace {

constexpr uint64_t kSequenceMask = (uint64_t{1} << 40) - 1;  // What a tag has of a message's number.

// Slices end between elements of any type.
constexpr size_t kSliceAlignment = 64;

// The sender chooses the size of its slices.
size_t MostSliceBytes(const PlanSettings& plan) { return LentSliceBytes(plan); }

MessageForm FormOf(const Call& call) { return static_cast<MessageForm>(call.op); }

}  // namespace

MessageReceiver::MessageReceiver(const MessageContext& context, MessageSender* sender)
    : context_(context), sender_(sender), runner_(context.endpoint, context.plan()), work_(CommonWork(context)) {}

bool MessageReceiver::is_asked() const {
  if (!lists_.waiting.empty() || !context_.offers_taken->empty()) return true;
  return arrival_.is_running && (arrival_.held == nullptr || !arrival_.held->receive.empty());
}

bool MessageReceiver::needs_link() const {
  if (!lists_.waiting.empty() || !context_.offers_taken->empty()) return true;
  // All of what is arriving may have come, and be on its way to a device.
  return is_asked() && runner_.WaitsFor(context_.endpoint);
}

void MessageReceiver::UpdateIdle() {
  const auto is_plain = [](const Held& each) { return each.call.root == 0; };
  is_idle_ = !busy() && !arrival_.is_running && !head_.is_posted && std::ranges::none_of(lists_.held, is_plain);
}

void MessageReceiver::Post(const Message& message) {
  context_.shared->pool.Post(message, &lists_.posted, &context_.shared->order);
  is_idle_ = false;
}

void MessageReceiver::Admit(bool* moved) {
  const MessageList& any = context_.shared->any_posted;
  const uint64_t end = any.empty() ? UINT64_MAX : any.front().order;
  while (first_posted() < end && lists_.posted.front().message.IsReady()) {
    if (!GiveHeld(&lists_.posted)) Await(&lists_.posted);
    *moved = true;
  }
}

void MessageReceiver::Await(MessageList* from) {
  QueuedMessage& receive = from->front();
  const auto asks = [&receive](const QueuedMessage& each) { return each.message.tag == receive.message.tag; };
  // Most receives are like the latest one.
  const bool is_first = std::find_if(lists_.waiting.rbegin(), lists_.waiting.rend(), asks) == lists_.waiting.rend();
  if (is_first) SetDeadlineOf(&receive);
  MoveFirst(from, &lists_.waiting);
}

bool MessageReceiver::GiveHeld(MessageList* receives) {
  const auto takes = [receives](const Held& each) { return receives->front().message.Accepts(each.call.root); };
  const auto found = std::ranges::find_if(lists_.held, takes);
  if (found == lists_.held.end()) return false;
  is_idle_ = false;
  MoveFirst(receives, &found->receive);
  QueuedMessage& receive = found->receive.front();
  receive.number = found->call.sequence;
  receive.tag = found->call.root;
  SetDeadlineOf(&receive);
  if (mismatch_.ok()) mismatch_ = Check(receive.message, found->call);
  if (found->data != nullptr) {
    lists_.taken.splice(lists_.taken.end(), lists_.held, found);
  } else {
    MoveFirst(&found->receive, &context_.offers_taken->untold);
    GiveBack(found->bytes);
    lists_.held.erase(found);
  }
  return true;
}

Status MessageReceiver::Advance(bool* moved) {
  Admit(moved);
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    if (!mismatch_.ok()) return mismatch_;
    ANNULUS_RETURN_IF_ERROR(Deliver(moved));
    if (arrival_.is_running) {
      ANNULUS_RETURN_IF_ERROR(runner_.Advance(moved));
      goes_on = runner_.done();
      if (goes_on) EndArrival();
    } else if (Listens()) {
      ANNULUS_RETURN_IF_ERROR(ReceiveHead(&goes_on));
    }
    if (goes_on) *moved = true;
  }
  UpdateIdle();
  return Status();
}

bool MessageReceiver::Listens() const {
  return is_asked() || !context_.shared->any_waiting.empty() || sender_->has_offers();
}

Status MessageReceiver::PostHead() {
  head_.recv = Recv();
  head_.recv.capacity = static_cast<uint32_t>(MostSliceBytes(context_.plan()));
  const auto next = FirstFor(0, &lists_.waiting);
  const auto any = FirstFor(0, &context_.shared->any_waiting);
  const bool is_own =
      next != lists_.waiting.end() && (any == context_.shared->any_waiting.end() || next->order < any->order);
  const size_t bytes = is_own ? std::min<size_t>(BytesOf(next->message), head_.recv.capacity) : 0;
  if (bytes > 0) {
    const Buffer& output = next->message.output;
    const bool reads = context_.endpoint->limits().in_place.Has(MemoryKind::kDevice);
    if (reads && KindOf(output.queue) == MemoryKind::kDevice) head_.recv.reader = output.data;
    if (MayLand(context_.endpoint, KindOf(output.queue), output.data, bytes)) {
      head_.recv.landing = output.data;
      head_.recv.capacity = static_cast<uint32_t>(bytes);
    }
  }
  Status posted = context_.endpoint->PostRecv(&head_.recv);
  if (posted.would_block()) return Status();
  head_.is_posted = posted.ok();
  return posted;
}

void MessageReceiver::FreeHead() {
  if (head_.recv.landing == nullptr || head_.recv.data != head_.recv.landing) context_.endpoint->Release(&head_.recv);
  head_.is_posted = false;
}

Status MessageReceiver::ReceiveHead(bool* took) {
  if (!head_.is_posted) ANNULUS_RETURN_IF_ERROR(PostHead());
  if (!head_.is_posted || !head_.recv.started) return Status();
  const Call call = CallOf(head_.recv.tag);
  const MessageForm form = FormOf(call);
  if (call.kind != CollectiveKind::kSend) return BrokenProtocol(context_.peer, "a slice of no message");
  if (form == MessageForm::kData) return OnNewMessage(call, form, took);
  if (head_.recv.bytes > 0) return BrokenProtocol(context_.peer, "a word about a message with data");
  if (head_.recv.code != Code::kOk) return Status();
  switch (form) {
    case MessageForm::kNotice:
    case MessageForm::kOffer:
      return OnNewMessage(call, form, took);
    case MessageForm::kGrant:
      sender_->OnGrant(static_cast<uint32_t>(call.sequence));
      break;
    case MessageForm::kBegin:
      ANNULUS_RETURN_IF_ERROR(BeginOffered(call));
      break;
    default:
      return BrokenProtocol(context_.peer, "an unknown word about a message");
  }
  *took = true;
  if (form == MessageForm::kGrant) FreeHead();
  return Status();
}

Status MessageReceiver::BeginOffered(const Call& call) {
  MessageList& told = context_.offers_taken->told;
  const auto is_it = [&call](const QueuedMessage& each) { return (each.number & kSequenceMask) == call.sequence; };
  const auto found = std::ranges::find_if(told, is_it);
  if (found == told.end()) return BrokenProtocol(context_.peer, "a message that was not granted");
  size_t slice_bytes = 0;
  ANNULUS_RETURN_IF_ERROR(ReadSliceBytes(call, MessageForm::kBegin, &slice_bytes));
  MoveMessage(&told, found, &lists_.current);
  FreeHead();
  const QueuedMessage& current = lists_.current.front();
  StartArrival(current.message, CallOf(current.message, current.number, current.tag), slice_bytes, false);
  return Status();
}

Status MessageReceiver::ReadSliceBytes(const Call& call, MessageForm form, size_t* slice_bytes) const {
  const size_t most = MostSliceBytes(context_.plan());
  size_t bytes = form == MessageForm::kOffer ? most : head_.recv.tag.words[3] >> 16;
  if (form == MessageForm::kData) {
    const bool is_whole = head_.recv.bytes == call.count * TypeBytes(call.type);
    bytes = is_whole ? most : head_.recv.bytes;
  }
  *slice_bytes = bytes;
  if (bytes > 0 && bytes <= most && bytes % kSliceAlignment == 0) return Status();
  return BrokenProtocol(context_.peer, "a message in slices of " + std::to_string(bytes) + " bytes");
}

// What must be true of a message whatever its receive.
Status MessageReceiver::CheckNew(const Call& call, MessageForm form) const {
  if (call.sequence != ((number_ + 1) & kSequenceMask)) {
    return BrokenProtocol(context_.peer, "message #" + std::to_string(call.sequence) + " where #" +
                                             std::to_string(number_ + 1) + " belongs");
  }
  if (static_cast<int>(call.type) >= kNumDataTypes) return BrokenProtocol(context_.peer, "a message of no type");
  const bool has_good_tag = form == MessageForm::kData ? call.root == 0 : call.root >= 0;
  return has_good_tag ? Status() : BrokenProtocol(context_.peer, "a message with a wrong tag");
}

Status MessageReceiver::OnNewMessage(const Call& call, MessageForm form, bool* took) {
  ANNULUS_RETURN_IF_ERROR(CheckNew(call, form));
  size_t slice_bytes = 0;
  ANNULUS_RETURN_IF_ERROR(ReadSliceBytes(call, form, &slice_bytes));
  const bool is_offer = form == MessageForm::kOffer;
  MessageList receive;
  const bool has_receive = Match(call.root, &receive);
  const size_t most = call.root != 0 ? EagerBytesWithTags(context_.plan()) : EagerBytes(context_.plan());
  if (!has_receive && !is_offer && call.count > most / TypeBytes(call.type))
    return BrokenProtocol(context_.peer, "a large message that it did not offer");
  Held* const held = has_receive ? nullptr : Hold(call, is_offer);
  head_.is_blocked = !has_receive && held == nullptr;
  if (head_.is_blocked) return Status();
  *took = true;
  ++number_;
  if (held != nullptr) {
    held->call.sequence = number_;
    held->is_arriving = !is_offer;
  } else {
    receive.front().number = number_;
    receive.front().tag = call.root;
    MoveFirst(&receive, is_offer ? &context_.offers_taken->untold : &lists_.current);
  }
  if (form != MessageForm::kData) FreeHead();
  if (is_offer && held != nullptr) return Status();
  const QueuedMessage* const taken = is_offer ? &context_.offers_taken->untold.back() : &lists_.current.back();
  if (held == nullptr) ANNULUS_RETURN_IF_ERROR(Check(taken->message, call));
  if (is_offer) return Status();
  arrival_.held = held;
  const bool has_first = form == MessageForm::kData;
  if (held == nullptr) {
    StartArrival(taken->message, CallOf(taken->message, number_, call.root), slice_bytes, has_first);
    return Status();
  }
  Message into;
  into.output = Buffer(held->data.get());
  into.count = call.count;
  into.type = call.type;
  StartArrival(into, CallOf(into, number_, call.root), slice_bytes, has_first);
  return Status();
}

MessageList::iterator MessageReceiver::FirstFor(int32_t tag, MessageList* list) {
  return std::ranges::find_if(*list, [tag](const QueuedMessage& each) { return each.message.Accepts(tag); });
}

bool MessageReceiver::Match(int32_t tag, MessageList* to) {
  MessageList* const any = &context_.shared->any_waiting;
  const auto own_first = FirstFor(tag, &lists_.waiting);
  const auto any_first = FirstFor(tag, any);
  const bool has_own = own_first != lists_.waiting.end();
  const bool has_any = any_first != any->end();
  if (!has_own && !has_any) return false;
  const bool takes_own = has_own && (!has_any || own_first->order < any_first->order);
  MoveMessage(takes_own ? &lists_.waiting : any, takes_own ? own_first : any_first, to);
  QueuedMessage& receive = to->back();
  if (receive.deadline == kNoDeadline) SetDeadlineOf(&receive);
  deadline_ = std::min(deadline_, receive.deadline);
  return true;
}

Status MessageReceiver::Check(const Message& receive, const Call& call) const {
  if (receive.count == call.count && receive.type == call.type) return Status();
  Call expected = CallOf(receive, call.sequence, call.root);
  expected.op = call.op;
  return CheckSlice({PackTag(expected, {}), 0}, {PackTag(call, {}), 0}, context_.peer);
}

MessageReceiver::Held* MessageReceiver::Hold(const Call& call, bool is_offer) {
  const size_t data_bytes = is_offer ? 0 : call.count * TypeBytes(call.type);
  const size_t bytes = data_bytes + sizeof(Held);
  const size_t together = context_.shared->held_together + BeyondShare(held_bytes_ + bytes) - BeyondShare(held_bytes_);
  if (together > HeldTogetherBytes(context_.plan())) return nullptr;
  try {
    std::unique_ptr<std::byte[]> data;
    if (!is_offer) data = std::make_unique_for_overwrite<std::byte[]>(data_bytes);
    Held& held = lists_.held.emplace_back();
    held.data = std::move(data);
    held.call = call;
    held.bytes = bytes;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  context_.shared->held_together = together;
  context_.shared->held_bytes += bytes;
  held_bytes_ += bytes;
  return &lists_.held.back();
}

void MessageReceiver::GiveBack(size_t bytes) {
  context_.shared->held_together -= BeyondShare(held_bytes_) - BeyondShare(held_bytes_ - bytes);
  context_.shared->held_bytes -= bytes;
  held_bytes_ -= bytes;
}

size_t MessageReceiver::BeyondShare(size_t bytes) const {
  const size_t share = HeldShareBytes(context_.plan());
  return bytes > share ? bytes - share : 0;
}

void MessageReceiver::StartArrival(const Message& message, const Call& call, size_t slice_bytes, bool has_first) {
  SetMessage(message, call, &work_);
  if (has_first) {
    ANNULUS_CHECK(head_.recv.landing == nullptr || head_.recv.landing == message.output.data);
    head_.is_posted = false;
  }
  arrival_.is_running = true;
  runner_.Start(ParamsOf(context_, message, slice_bytes), &work_, has_first ? &head_.recv : nullptr);
}

void MessageReceiver::EndArrival() {
  arrival_.is_running = false;
  if (arrival_.held == nullptr) return Finish(&lists_.current);
  std::exchange(arrival_.held, nullptr)->is_arriving = false;
}

Status MessageReceiver::Deliver(bool* moved) {
  while (!lists_.taken.empty() && !lists_.taken.front().is_arriving) {
    Held& held = lists_.taken.front();
    const Message& message = held.receive.front().message;
    if (!held.is_copied && message.count > 0) {
      SliceOp op;
      op.dst[0] = message.output.data;
      op.inline_src[0] = held.data.get();
      op.num_sources = 1;
      op.count = message.count;
      op.type = message.type;
      Status submitted = held.copy.Submit(message.output.queue, op);
      if (submitted.would_block()) return Status();
      ANNULUS_RETURN_IF_ERROR(std::move(submitted));
    }
    held.is_copied = true;
    if (held.copy.pending()) {
      ANNULUS_RETURN_IF_ERROR(held.copy.Poll());
      if (held.copy.pending()) return Status();
    }
    GiveBack(held.bytes);
    MessageList receive = std::move(held.receive);
    lists_.taken.pop_front();
    Finish(&receive);
    *moved = true;
  }
  return Status();
}

void MessageReceiver::Finish(MessageList* receive) {
  const QueuedMessage& ended = receive->front();
  TraceMessage(context_, ended);
  void* const cookie = ended.message.cookie;
  const int32_t tag = ended.tag;
  const Message message = ended.message;
  context_.shared->pool.Recycle(receive);
  SetNextDeadlineLike(message);
  context_.config->done(cookie, context_.peer, tag);
}

}  // namespace annulus
