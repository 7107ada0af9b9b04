// The messages of Dispatcher: those that move at once, those that are queued, and driving them.
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "collectives/comm/dispatcher.h"
#include "collectives/observe/trace.h"

namespace annulus {
namespace {

// More than any message has that moves at once.
constexpr size_t kMostMessageElements = size_t{1} << 30;

// TypeAlignment - 1 of each type, without the way by its row.
constexpr auto kAlignmentMasks = [] {
  std::array<uint8_t, kNumDataTypes> masks{};
  for (int type = 0; type < kNumDataTypes; ++type)
    masks[static_cast<size_t>(type)] = static_cast<uint8_t>(TypeAlignment(static_cast<DataType>(type)) - 1);
  return masks;
}();

// Queued messages among which a short wait looks for those of its group.
constexpr size_t kMostLooks = 256;
// Posted receives beside which a wait goes on looking.
constexpr size_t kMostReceivesLeft = 16;

Message MessageOf(const CallArguments& a) {
  Message message;
  message.sends = a.kind == CollectiveKind::kSend;
  message.peer = a.root;
  message.input = {a.sendbuf, a.send_queue};
  message.output = {a.recvbuf, a.recv_queue};
  message.count = a.count;
  message.type = a.type;
  message.tag = a.tag();
  return message;
}

Message PostedMessageOf(Request* request) {
  Message message = MessageOf(request->arguments);
  message.cookie = request;
  message.timeout = request->arguments.timeout();
  return message;
}

}  // namespace

[[gnu::flatten]] std::optional<Code> Dispatcher::RunMessageAtOnce(const CallArguments& given) {
  if (given.options != nullptr && (given.priority() != 0 || given.agree_first() || given.tag() != 0))
    return std::nullopt;
  if (!IsGoodMessage(given)) return std::nullopt;
  const Message message = MessageOf(given);
  for (int looks = 1;; ++looks) {
    CallQueue::Turn turn(queue_);
    if (!turn || failures_->ended()) return std::nullopt;
    if (message.sends && !messages_.SendsWhole(message.peer, BytesOf(message))) return SendAtOnce(&turn, given);
    const bool others_posted = turn.FirstPosted() != nullptr;
    if (others_posted && turn.HasPostedBefore(given, nullptr)) return std::nullopt;
    const AtOnce moved = message.sends ? driver_.SendWhole(message, others_posted)
                                       : driver_.ReceiveAtOnce(message, MessagePolls(), others_posted);
    EndBegun(&turn, 1);
    if (moved == AtOnce::kDone) return EndAtOnce(&turn, given);
    if (message.sends || moved == AtOnce::kNever || queue_->IsWanted()) return std::nullopt;
    if (HasOthersPosted(turn, nullptr) || !driver_.MayLookAgain()) return std::nullopt;
    if (looks == MessageLooks(message.peer, BytesOf(message))) return std::nullopt;
  }
}

[[gnu::flatten]] Dispatcher::Exchanged Dispatcher::ExchangeAtOnce(const CallArguments& send,
                                                                  const CallArguments& recv) {
  if (!IsGoodMessage(send) || !IsGoodMessage(recv) || !AreApart(send, recv)) return Exchanged::kNothing;
  CallQueue::Turn turn(queue_);
  if (!turn || failures_->ended() || !messages_.SendsWhole(send.root, send.count * TypeBytes(send.type)))
    return Exchanged::kNothing;
  const bool others_posted = turn.FirstPosted() != nullptr;
  // A receive that has to be queued finds a request.
  if (!requests_->HasSpare() || (others_posted && turn.HasPostedBefore(send, nullptr))) return Exchanged::kNothing;
  if (driver_.SendWhole(MessageOf(send), others_posted) != AtOnce::kDone) return Exchanged::kNothing;
  turn.CountMessage(send);
  if (others_posted || messages_.has_active()) return Exchanged::kSent;
  if (driver_.ReceiveAtOnce(MessageOf(recv), MessagePolls(), false) != AtOnce::kDone) return Exchanged::kSent;
  turn.CountMessage(recv);
  return Exchanged::kBoth;
}

AtOnce Dispatcher::MoveFirst(CallQueue::Turn* turn, const CallArguments& given, const Message& message, int polls) {
  const bool others_posted = turn->FirstPosted() != nullptr;
  if (others_posted && turn->HasPostedBefore(given, nullptr)) return AtOnce::kNo;
  return driver_.MoveAtOnce(message, polls, others_posted);
}

AtOnce Dispatcher::StartFirst(const CallQueue::Turn& turn, const CallArguments& given, const Message& message,
                              bool awaited) {
  if (turn.FirstPosted() != nullptr && turn.HasPostedBefore(given, nullptr)) return AtOnce::kNo;
  const bool is_copied = !awaited && messages_.CopiesWhole(message.peer, BytesOf(message));
  if (is_copied && driver_.MayMoveAtOnce()) return driver_.StartWhole(message);
  return driver_.StartAtOnce(message);
}

Code Dispatcher::EndAtOnce(CallQueue::Turn* turn, const CallArguments& given) {
  if (given.options != nullptr && given.options->received != nullptr)
    TellReceived(given.root, 0, given.count, given.options->received);
  turn->CountMessage(given);
  turn->End();
  return Code::kOk;
}

[[gnu::noinline]] std::optional<Code> Dispatcher::SendAtOnce(CallQueue::Turn* turn, const CallArguments& given) {
  Request* const request = requests_->Add(given);
  Message message = MessageOf(given);
  message.cookie = request;
  message.timeout = given.timeout();
  const AtOnce moved = MoveFirst(turn, given, message, 0);
  if (moved == AtOnce::kBegun) {
    turn->KeepMessage(request, false);
    AwaitBegun(turn, *request);
    Help(request, kNoDeadline);
    return requests_->Release(request).code();
  }
  requests_->Forget(request);
  if (moved != AtOnce::kDone) return std::nullopt;
  turn->EndCall(given, Code::kOk);
  return Code::kOk;
}

void Dispatcher::AwaitBegun(CallQueue::Turn* turn, const Request& request) {
  const CallArguments& a = request.arguments;
  int looks = MessageLooks(a.root, a.count * TypeBytes(a.type));  // Whoever drives may write there.
  EndBegun(turn, looks > 1 ? BegunPolls() : 1);
  turn->End();
  for (; looks > 1; --looks) {
    if (request.IsDone() || queue_->IsWanted()) return;
    CallQueue::Turn next(queue_, CallQueue::Turn::OnlyLock());
    if (!next.MayDriveMessages() || failures_->ended()) return;
    Request* const receive = AwaitedMeanwhile(next, request);
    const AtOnce received = receive != nullptr ? MovePosted(&next, receive, 1) : AtOnce::kNo;
    EndBegun(&next, BegunPolls());
    if (received == AtOnce::kDone) next.AnnounceEnd();
  }
}

Request* Dispatcher::AwaitedMeanwhile(const CallQueue::Turn& turn, const Request& request) {
  Request* const first = turn.FirstPosted();
  if (!IsMessage(request.arguments.kind) || first == nullptr || first == &request) return nullptr;
  return first->arguments.kind == CollectiveKind::kRecv ? first : nullptr;
}

bool Dispatcher::EndAnyBegun(CallQueue::Turn* turn, int polls) {
  bool any = false;
  while (void* const cookie = driver_.EndBegun(polls)) {
    Request* const ended = static_cast<Request*>(cookie);
    turn->RemoveMessage(ended);
    requests_->MarkDone(ended, Code::kOk);
    any = true;
  }
  if (any) turn->AnnounceEnd();
  return any;
}

bool Dispatcher::LooksFor(int peer, size_t bytes) const {
  const Endpoint* const endpoint = setup_->links().At(peer, MessageChannel(setup_->plan()));
  if (endpoint == nullptr || !endpoint->limits().shares_memory) return false;
  const bool lends = endpoint->limits().may_land_in.Has(MemoryKind::kHost);
  return bytes <= (lends ? kMostLentBytesLookedFor : kMostBytesLookedFor);
}

bool Dispatcher::IsGoodMessage(const CallArguments& given) const {
  if (!is_plain() && !CanRunAgainHere(given)) return false;
  if (!IsMessage(given.kind) || given.root < 0 || given.root >= messages_.num_peers() || given.root == rank())
    return false;
  if (static_cast<int>(given.type) >= kNumDataTypes || given.count > kMostMessageElements) return false;
  const bool sends = given.kind == CollectiveKind::kSend;
  const uintptr_t buffer = reinterpret_cast<uintptr_t>(sends ? given.sendbuf : given.recvbuf);
  return buffer != 0 && (buffer & kAlignmentMasks[static_cast<size_t>(given.type)]) == 0;
}

[[gnu::flatten]] bool Dispatcher::SubmitMessage(const CallArguments& given, void* handle) {
  if (!MaySubmitOne(given) || !IsGoodMessage(given)) return false;
  CallQueue::Turn turn(queue_, CallQueue::Turn::OnlyLock());
  if (!MaySubmitNow(turn)) return false;
  const bool sends = given.kind == CollectiveKind::kSend;
  // A send that is over at once needs a request for its handle only.
  const bool is_whole = sends && messages_.CopiesWhole(given.root, given.count * TypeBytes(given.type));
  const bool may_end = is_whole && given.done() == nullptr && requests_->HasSpare();
  if (may_end && !turn.HasPostedBefore(given, nullptr) && driver_.StartWhole(MessageOf(given)) == AtOnce::kDone) {
    turn.CountMessage(given);
    if (handle != nullptr) GiveHandle(*requests_->AddEnded(), handle);
    return true;
  }
  Request* const request = given.options == nullptr ? requests_->AddPlain(given) : requests_->Add(given);
  request->discarded = handle == nullptr;
  if (handle != nullptr) GiveHandle(*request, handle);
  if (!sends || may_end) {
    // Looking for the message of a receive that has only just been started would take from its peer the line that it
    // is about to write.
    turn.PostMessage(request);
  } else if (StartSend(&turn, request)) {
    request->awaited = handle != nullptr;  // Whoever holds it need not wait for it.
    requests_->MarkDone(request, Code::kOk);
  }
  return true;
}

bool Dispatcher::StartSend(CallQueue::Turn* turn, Request* request, bool awaited) {
  const CallArguments& given = request->arguments;
  Message message = MessageOf(given);
  message.cookie = request;
  message.timeout = given.timeout();
  const AtOnce moved = StartFirst(*turn, given, message, awaited);
  if (moved == AtOnce::kDone) {
    turn->CountMessage(given);
  } else if (moved == AtOnce::kBegun) {
    turn->KeepMessage(request, true);
  } else {
    turn->PostMessage(request);
  }
  return moved == AtOnce::kDone;
}

bool Dispatcher::SubmitMessages(std::span<const CallArguments> given, void* handle) {
  if (given.size() > kMostAtOnce || !MaySubmitAgain(given)) return false;
  size_t bytes = 0;
  for (const CallArguments& each : given) {
    if (!IsGoodMessage(each)) return false;
    if (each.kind == CollectiveKind::kSend) bytes += each.count * TypeBytes(each.type);
  }
  if (bytes > kMostBytesAtOnce) return false;
  CallQueue::Turn turn(queue_, CallQueue::Turn::OnlyLock());
  if (!MaySubmitNow(turn)) return false;
  std::array<Request*, kMostAtOnce> made;
  Request* const whole = requests_->AddAll(given, handle == nullptr, made.data());
  if (handle != nullptr) GiveHandle(*whole, handle);
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].kind != CollectiveKind::kSend) {
      turn.PostMessage(made[i]);
    } else if (StartSend(&turn, made[i])) {
      requests_->MarkDone(made[i], Code::kOk);
    }
  }
  return true;
}

bool Dispatcher::EndsAtOnce(Request* message) {
  if (by_priority() || !message->IsReady()) return false;
  const CallArguments arguments = message->arguments;  // The message may be freed once it has ended.
  CallQueue::Turn turn(queue_);
  if (!turn || failures_->ended() || MoveFirst(&turn, arguments, MessageOf(arguments), 1) != AtOnce::kDone)
    return false;
  // Whoever holds it need not wait for it.
  message->awaited = !message->discarded;
  // Before the turn is given back: whoever has it next may sleep, and must know.
  requests_->MarkDone(message, Code::kOk);
  turn.EndCall(arguments, Code::kOk);
  queue_->AnnounceEnd();
  return true;
}

int Dispatcher::MessageLooksFor(const CallQueue::Turn& turn, const Request& request) const {
  const CallArguments& a = request.arguments;
  if (IsMessage(a.kind)) return MessageLooks(a.root, a.count * TypeBytes(a.type));
  int most = 1;
  size_t left = kMostLooks;
  for (const Request* first : {turn.FirstPosted(), turn.FirstMessage()}) {
    for (const Request* each = first; each != nullptr && left > 0; each = each->next, --left) {
      if (each->group != &request) continue;
      const CallArguments& one = each->arguments;
      const int looks = MessageLooks(one.root, one.count * TypeBytes(one.type));
      if (looks == 1) return 1;
      most = std::max(most, looks);
    }
  }
  return most;
}

bool Dispatcher::MayLookOn(const CallQueue::Turn& turn, const Request& request, int looks) const {
  return looks < MessageLooksFor(turn, request) && driver_.MayLookAgain() && !HasOthersPosted(turn, &request) &&
         !queue_->IsWanted();
}

bool Dispatcher::HasOthersPosted(const CallQueue::Turn& turn, const Request* request) {
  size_t left = kMostReceivesLeft;
  for (const Request* each = turn.FirstPosted(); each != nullptr; each = each->next) {
    if (request != nullptr && (each == request || each->group == request)) continue;
    if (each->arguments.kind != CollectiveKind::kRecv || left-- == 0) return true;
  }
  return false;
}

AtOnce Dispatcher::MovePosted(CallQueue::Turn* turn, Request* request, int polls) {
  const CallArguments& given = request->arguments;
  if (!turn->IsPosted(request) || !request->IsReady() || turn->HasPostedBefore(given, request)) return AtOnce::kNo;
  const bool is_alone = turn->FirstPosted() == request && request->next == nullptr;
  // Each has a message of its own, so that the one of a receive, which is taken in here, stays in registers.
  const AtOnce moved = given.kind == CollectiveKind::kSend
                           ? driver_.MoveAtOnce(PostedMessageOf(request), polls, !is_alone)
                           : driver_.ReceiveAtOnce(PostedMessageOf(request), polls, !is_alone);
  if (moved == AtOnce::kBegun) turn->KeepMessage(request, false);
  if (moved != AtOnce::kDone) return moved;
  turn->RemoveMessage(request);
  requests_->MarkDone(request, Code::kOk);  // As in EndsAtOnce.
  return moved;
}

[[gnu::flatten]] AtOnce Dispatcher::LookForMessages(CallQueue::Turn* turn, Request* request, int polls) {
  bool any = false;
  AtOnce moved =
      IsMessage(request->arguments.kind) ? MovePosted(turn, request, polls) : MovePostedOf(turn, *request, polls, &any);
  if (Request* const receive = AwaitedMeanwhile(*turn, *request); receive != nullptr && moved == AtOnce::kNo) {
    const bool is_before = turn->IsPosted(request) && turn->HasPostedBefore(request->arguments, request);
    const AtOnce received = MovePosted(turn, receive, is_before ? polls : 1);
    any |= received == AtOnce::kDone;
    if (is_before && received == AtOnce::kNever) moved = received;
  }
  // Whoever waits for a receive has no need of a send's end yet, but nobody else may see to it meanwhile.
  const bool needs_end = !request->done && request->arguments.kind != CollectiveKind::kRecv;
  EndBegun(turn, needs_end ? std::min(polls, BegunPolls()) : 1);
  if (any || moved == AtOnce::kDone) turn->AnnounceEnd();
  if (request->done) return request->code == Code::kOk ? AtOnce::kDone : AtOnce::kNever;
  return moved == AtOnce::kNever ? moved : AtOnce::kNo;
}

AtOnce Dispatcher::MovePostedOf(CallQueue::Turn* turn, const Request& group, int polls, bool* any) {
  AtOnce moved = AtOnce::kNo;
  size_t looks = kMostLooks;
  for (Request* next = turn->FirstPosted(); next != nullptr && looks > 0; --looks) {
    Request* const each = std::exchange(next, next->next);
    if (each->group != &group) continue;
    moved = MovePosted(turn, each, polls);
    if (moved != AtOnce::kDone) break;
    *any = true;
  }
  return moved;
}

Status Dispatcher::RunMessage(const CallArguments& arguments) {
  if (by_priority()) ANNULUS_RETURN_IF_ERROR(StartProgressThread());
  Request* message = nullptr;
  {
    CallQueue::Turn turn(queue_);
    if (turn) {
      if (failures_->ended()) return Status(failures_->verdict().code);
      turn.Lengthen(Call());
      message = QueueMessage(arguments);
      // A collective that another thread queues meanwhile must not wait for the message.
      const auto over = [this, message] { return message->IsDone() || queue_->HasCalls(); };
      DriveMessages(over, {setup_->wait_policy(), {}});
    }
  }
  if (message == nullptr) message = QueueMessage(arguments);
  Help(message, kNoDeadline);
  return requests_->Release(message);
}

Request* Dispatcher::QueueMessage(const CallArguments& arguments) {
  Request* const message = requests_->Make(arguments);
  Requests::Unqueued unqueued(requests_, {&message, 1});
  NoteLabels({&message, 1});
  unqueued.Keep();
  Queue(message);
  return message;
}

void Dispatcher::NoteLabels(std::span<Request* const> requests) {
  Trace* const trace = setup_->monitor()->trace();
  if (trace == nullptr) return;
  for (const Request* const request : requests) {
    if (!IsMessage(request->arguments.kind)) continue;
    // The first look at a label needs memory.
    static_cast<void>(trace->LabelOf(request->arguments.label()));
  }
}

bool Dispatcher::FirstPosted(Message* message) {
  Request* const request = queue_->FirstPosted();
  if (request == nullptr) return false;
  const CallArguments& a = request->arguments;
  *message = MessageOf(a);
  message->stream = request->stream;
  message->cookie = request;
  message->timeout = a.timeout();
  if (Trace* const trace = setup_->monitor()->trace(); trace != nullptr) message->label = trace->LabelOf(a.label());
  return true;
}

void Dispatcher::FinishMessage(Request* message, int peer, int32_t tag) {
  // What a receive got; unchanged for a send.
  message->arguments.root = peer;
  message->options.tag = tag;
  queue_->EndMessage(message, Code::kOk);
  Finish(message, Code::kOk);
  queue_->AddNews();
}

}  // namespace annulus
