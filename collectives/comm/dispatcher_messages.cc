// The messages of Dispatcher: those that move at once, those that are queued, and driving them.
#include "collectives/comm/dispatcher.h"
#include "collectives/observe/trace.h"

namespace annulus {
namespace {

Message MessageOf(const CallArguments& a) {
  Message message;
  message.sends = a.kind == CollectiveKind::kSend;
  message.peer = a.root;
  message.input = {a.sendbuf, a.send_queue};
  message.output = {a.recvbuf, a.recv_queue};
  message.count = a.count;
  message.type = a.type;
  return message;
}

}  // namespace

std::optional<Code> Dispatcher::RunMessageAtOnce(const CallArguments& given) {
  if (given.priority() != 0 || given.agree_first()) return std::nullopt;
  if (!is_plain_ && !CanRunAgainHere(given)) return std::nullopt;
  if (!CheckArguments(given, rank(), nranks()).ok()) return std::nullopt;
  CallQueue::Turn turn(queue_);
  if (!turn || failures_->ended() || !driver_.MoveAtOnce(MessageOf(given), MessagePolls())) return std::nullopt;
  turn.EndCall(given, Code::kOk);
  return Code::kOk;
}

bool Dispatcher::EndsAtOnce(Request* message) {
  if (by_priority()) return false;
  const CallArguments arguments = message->arguments;  // The message may be freed once it has ended.
  CallQueue::Turn turn(queue_);
  if (!turn || failures_->ended() || !driver_.MoveAtOnce(MessageOf(arguments), 1)) return false;
  messages_.Unreserve();
  // Before the turn is given back: whoever has it next may sleep, and must know.
  requests_->MarkDone(message, Code::kOk);
  turn.EndCall(arguments, Code::kOk);
  queue_->AnnounceEnd();
  return true;
}

std::optional<Code> Dispatcher::WaitMessageAgain(CallQueue::Turn* turn, Request* message) {
  if (by_priority() || !turn->MayDriveMessages() || failures_->ended()) return std::nullopt;
  if (!driver_.MovePostedAtOnce(message, MessagePolls())) return std::nullopt;
  turn->RemoveMessage(message);
  requests_->MarkDone(message, Code::kOk);  // As in EndsAtOnce.
  turn->End();
  queue_->AnnounceEnd();
  return Code::kOk;
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
  MakeRoom({&message, 1});
  unqueued.Keep();
  Queue(message);
  return message;
}

void Dispatcher::DriveMessages(const std::function<bool()>& over, const Manner& manner) {
  // A communicator that failed before this turn began must not be driven any more.
  if (failures_->ended()) return FailMessages(failures_->verdict().code);
  queue_->AddNews();
  Verdict verdict;
  const std::function<bool()>* const is_enough = manner.patience.is_over;
  const auto asks = [&] { return (queue_->Notice() && over()) || (is_enough != nullptr && (*is_enough)()); };
  const std::function<bool()> is_over = std::ref(asks);
  if (!driver_.RunMessages(manner.policy, {&is_over, manner.patience.wake_at}, &verdict)) Fail(verdict);
}

void Dispatcher::FailMessages(Code code) {
  while (Request* const message = queue_->TakeMessage()) Drop(message, code);
}

void Dispatcher::MakeRoom(std::span<Request* const> requests) {
  Trace* const trace = setup_->monitor()->trace();
  size_t messages = 0;
  for (const Request* const request : requests) {
    if (!IsMessage(request->arguments.kind)) continue;
    ++messages;
    // The first look at a label needs memory.
    if (trace != nullptr) static_cast<void>(trace->LabelOf(request->arguments.label()));
  }
  if (messages > 0) messages_.Reserve(messages);
}

bool Dispatcher::Post(Request* message) {
  const CallArguments& a = message->arguments;
  if (!queue_->AddMessage(message)) {
    Drop(message, Code::kAborted);
    return false;
  }
  Trace* const trace = setup_->monitor()->trace();
  Message posted = MessageOf(a);
  posted.cookie = message;
  posted.timeout = a.timeout();
  if (trace != nullptr) posted.label = trace->LabelOf(a.label());
  messages_.Post(posted);
  return true;
}

void Dispatcher::FinishMessage(Request* message) {
  queue_->EndMessage(message, Code::kOk);
  Finish(message, Code::kOk);
  queue_->AddNews();
}

}  // namespace annulus
