// The short cuts of Dispatcher: small collectives that repeat a recent one with other data, and waits for any that is
// next in the queue.
#include <algorithm>
#include <functional>
#include <utility>

#include "collectives/comm/dispatcher.h"

namespace annulus {

bool Dispatcher::RepeatsRecent(const CallArguments& given) {
  if (failures_->ended() || !driver_.MayRepeat()) return false;
  // A recent call of the engine's was valid, so only the buffers remain to be checked.
  if (given.kind == CollectiveKind::kAllreduce) {
    return engine_.Repeats(given.kind, given.type, given.op, 0, given.count) && given.created_op == 0 &&
           HasGoodBuffers(given);
  }
  if (!EqualsRecent(given)) return false;
  return given.kind == CollectiveKind::kBarrier || HasGoodBuffers(given, rank(), nranks());
}

bool Dispatcher::EqualsRecent(const CallArguments& given) {
  const CollectiveKind kind = given.kind;
  if (kind == CollectiveKind::kBarrier) return engine_.Repeats(kind, DataType{}, ReduceOp{}, 0, 0);
  if (given.created_op != 0) return false;
  const ReduceOp op = Reduces(kind) ? given.op : ReduceOp{};
  const int root = HasRoot(kind) ? given.root : 0;
  if (!HasVariableParts(kind)) return engine_.Repeats(kind, given.type, op, root, given.count);
  return engine_.RepeatsParts(kind, given.type, op, root, given.count, given.send_layout, given.recv_layout);
}

bool Dispatcher::CanRunAgain(const CallArguments& given) {
  return RepeatsRecent(given) && (is_plain() || CanRunAgainHere(given));
}

bool Dispatcher::CanDriveAgain(const Request& request) {
  const CallArguments& a = request.arguments;
  const bool is_plain = !request.is_fused() && request.stream == nullptr;
  return is_plain && a.send_queue == nullptr && a.recv_queue == nullptr && !by_priority() && RepeatsRecent(a);
}

bool Dispatcher::CanRunAgainHere(const CallArguments& given) const {
  return !by_priority() && queues_->QueueOf(given.sendbuf) == nullptr && queues_->QueueOf(given.recvbuf) == nullptr;
}

std::optional<Code> Dispatcher::RunCallAgain(const CallArguments& given) {
  if (given.priority() != 0 || given.agree_first()) return std::nullopt;
  CallQueue::Turn turn(queue_);
  if (!turn || !CanRunAgain(given)) return std::nullopt;
  Call call = engine_.latest();
  call.sequence = turn.NextSequence();
  if (driver_.Repeat(call, given.sendbuf, given.recvbuf)) {
    turn.CountEnded(BytesOfRepeat(given));
    return Code::kOk;
  }
  turn.Lengthen(call);
  Verdict verdict;
  const Code code = *CodeOf(driver_.Resume(call, LimitOf(given), setup_->wait_policy(), {}, &verdict), verdict);
  turn.EndCall(given, code);
  return code;
}

bool Dispatcher::MaySubmitAgain(std::span<const CallArguments> given) const {
  for (const CallArguments& each : given) {
    const CallOptions* const options = each.options;
    if (options == nullptr) continue;
    if (options->priority != 0 || options->agree_first || options->on_stream || options->tag != 0) return false;
    if (options->done != nullptr && !requests_->MayCallBack()) return false;
  }
  return MaySubmitAgain();
}

[[gnu::flatten]] bool Dispatcher::SubmitCallsAgain(std::span<const CallArguments> group, void* handle) {
  const CallArguments& given = group.front();
  if (IsMessage(given.kind)) return SubmitMessages(group, handle);
  if (group.size() > 1) return SubmitAsOne(group, handle) || SubmitInTurn(group, handle);
  if (!MaySubmitOne(given)) return false;
  CallQueue::Turn turn(queue_, CallQueue::Turn::OnlyLock());
  if (turn.is_stopping()) return false;
  if (!turn.MayDrive() || !CanRunAgain(given)) {
    turn.End();
    return SubmitInTurn(group, handle);
  }
  Call call = engine_.latest();
  call.sequence = 0;
  const bool begins = turn.MayDriveMessages() && !driver_.paused();
  const auto begin = [&](bool may_end) {
    call.sequence = turn.NextSequence();
    return driver_.BeginAgain(call, given.sendbuf, given.recvbuf, may_end);
  };
  // What has begun must be queued, so nothing that may need memory may come after it.
  const bool begins_before = begins && given.options == nullptr && requests_->HasSpareFor(given);
  Awaits awaits = Awaits::kAll;
  if (begins_before) awaits = begin(true);
  if (awaits == Awaits::kNothing && driver_.EndAgain(call)) {
    turn.CountEnded(BytesOfRepeat(given));
    if (handle != nullptr) GiveHandle(*requests_->AddEnded(), handle);
    return true;
  }
  const bool is_plain = begins_before || (given.options == nullptr && !requests_->UsesLayouts(given));
  const bool has_arrays = requests_->UsesLayouts(given);
  Request* const request = !is_plain    ? requests_->Add(given)
                           : has_arrays ? requests_->AddSpare(given)
                                        : requests_->AddPlain(given);
  request->discarded = handle == nullptr;
  if (begins && !begins_before) begin(false);
  // What has begun is never planned anew.
  if (!begins && HasRoot(given.kind)) ForgetUnused(&request->arguments, rank(), nranks());
  request->plan = engine_.plan();
  request->call = call;
  if (handle != nullptr) GiveHandle(*request, handle);
  // Where its peers have all that they need from it, nobody has to be woken before its owner comes.
  turn.Add(request, awaits != Awaits::kArrivals || handle == nullptr);
  return true;
}

std::optional<Code> Dispatcher::WaitAgain(RequestHandle handle, int64_t timeout_ms) {
  if (timeout_ms < -1) return std::nullopt;
  Deadline until = kNoDeadline;
  for (int looks = 0;;) {
    CallQueue::Turn turn(queue_, CallQueue::Turn::OnlyLock());
    Request* const request = requests_->Find(handle);
    if (request == nullptr) return std::nullopt;
    // Why it has failed, if so, is for others to say.
    if (request->done) return request->code == Code::kOk ? std::optional<Code>(Code::kOk) : std::nullopt;
    request->awaited = true;
    const CollectiveKind kind = request->arguments.kind;
    if (!IsMessage(kind) && kind != CollectiveKind::kNone) return WaitCollectiveAgain(&turn, request, timeout_ms);
    if (IsNextMember(turn.FirstCall(), *request)) {
      if (until == kNoDeadline) until = UntilOf(timeout_ms);
      bool is_over = true;
      const std::optional<Code> code = WaitMembersAgain(&turn, request, until, &is_over);
      if (is_over) return code;
      if (timeout_ms == 0 || (until != kNoDeadline && Now() >= until)) return Code::kInProgress;
      continue;
    }
    if (by_priority() || !turn.MayDriveMessages() || failures_->ended()) return std::nullopt;
    const AtOnce moved = LookForMessages(&turn, request, timeout_ms == 0 ? 1 : MessagePolls());
    if (moved == AtOnce::kDone) return Code::kOk;
    if (timeout_ms == 0 || moved == AtOnce::kNever || !MayLookOn(turn, *request, ++looks)) return std::nullopt;
  }
}

std::optional<Code> Dispatcher::WaitCollectiveAgain(CallQueue::Turn* turn, Request* request, int64_t timeout_ms) {
  if (!turn->MayDriveFirst(request) || driver_.paused()) return std::nullopt;
  if (!CanStillDriveAgain(*request) && !MayDriveNow(*request)) return std::nullopt;
  bool resumes = false;
  std::optional<Code> code = Code::kOk;
  const bool ends_now = EndsNow(*request, &resumes);
  if (!ends_now) code = DriveOn(turn, *request, request, resumes, UntilOf(timeout_ms));
  if (!code) return Code::kInProgress;  // The driver has paused.
  if (code == Code::kOk) {
    turn->RemoveEnded(BytesOfRepeat(request->arguments));
  } else {
    turn->RemoveFirst(*code);
  }
  BeginNext(turn);
  // Before the turn is given back: whoever has it next may sleep, and must know.
  requests_->MarkDone(request, *code);
  turn->End();
  queue_->AnnounceEnd();
  if (!ends_now) ended_();
  return code == Code::kOk ? code : std::nullopt;
}

bool Dispatcher::MayDriveNow(const Request& request) const {
  const CallArguments& a = request.arguments;
  return !HasEnded() && !by_priority() && !request.is_fused() && request.stream == nullptr && a.send_queue == nullptr &&
         a.recv_queue == nullptr;
}

bool Dispatcher::EndsNow(const Request& request, bool* resumes) {
  const bool has_begun = driver_.has_begun();
  const bool repeats = CanStillDriveAgain(request) || (!has_begun && CanDriveAgain(request));
  *resumes = repeats || has_begun;
  return repeats && (has_begun ? driver_.EndAgain(request.call) : RepeatNow(request));
}

std::optional<Code> Dispatcher::DriveOn(CallQueue::Turn* turn, const Request& request, Request* awaited, bool resumes,
                                        Deadline until) {
  struct Waiting {  // Others may free what is awaited while the lock is given back.
    CallQueue::Turn* const turn;
    Request* const awaited;
    ~Waiting() {
      turn->Shorten();
      --awaited->waiters;
    }
  };
  ++awaited->waiters;
  const Waiting waiting{turn, awaited};
  turn->Lengthen(request.call);
  if (resumes) return ResumeUntil(request, until);
  return Patiently(until,
                   [&](const Manner& manner) { return Drive(request.arguments, nullptr, request.call, manner); });
}

void Dispatcher::BeginNext(CallQueue::Turn* turn) {
  const Request* const next = turn->FirstCall();
  if (next != nullptr && CanStillDriveAgain(*next) && turn->MayDriveFirst(next))
    driver_.BeginAgain(next->call, next->arguments.sendbuf, next->arguments.recvbuf, false);
}

Deadline Dispatcher::UntilOf(int64_t timeout_ms) {
  if (timeout_ms < 0) return kNoDeadline;
  return DeadlineAfter(std::min(timeout_ms, Requests::kLongestWaitMs) * kMillisecond);
}

std::optional<Code> Dispatcher::Patiently(Deadline until, const Drives& drives) const {
  if (until == kNoDeadline) return drives({setup_->wait_policy(), {}});
  bool has_looked = false;
  const std::function<bool()> is_over = [&] { return std::exchange(has_looked, true) && Now() >= until; };
  return drives({setup_->wait_policy(), {&is_over, until}});
}

std::optional<Code> Dispatcher::ResumeUntil(const Request& request, Deadline until) {
  return Patiently(until, [&](const Manner& manner) { return ResumeAgain(request, manner); });
}

std::optional<Code> Dispatcher::DriveAgain(const Request& request, const Manner& manner) {
  return RepeatNow(request) ? Code::kOk : ResumeAgain(request, manner);
}

std::optional<Code> Dispatcher::ResumeAgain(const Request& request, const Manner& manner) {
  Verdict verdict;
  const Nanoseconds limit = LimitOf(request.arguments);
  return CodeOf(driver_.Resume(request.call, limit, manner.policy, manner.patience, &verdict), verdict);
}

}  // namespace annulus
