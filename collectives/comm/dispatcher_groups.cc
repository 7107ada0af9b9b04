// Calls that one thread makes together: the exchanges of Dispatcher, a send and a receive that it waits for, and the
// short cuts for groups of small collectives.
#include <algorithm>
#include <array>

#include "collectives/calls/buffer_parts.h"
#include "collectives/calls/group.h"
#include "collectives/choice/plan.h"
#include "collectives/comm/dispatcher.h"

namespace annulus {
namespace {

// More than any tensor has that goes by a short cut.
constexpr size_t kMostElements = size_t{1} << 30;

// Most chunks of tensors that are put together within one lock: some 20 us.
constexpr size_t kMostChunks = 4096;

// What a call without data counts for among the bytes that are moved within one lock: some 200 ns.
constexpr size_t kBytesOfAnyCall = 2048;

}  // namespace

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
  if (StartSend(&turn, send, true)) requests_->MarkDone(send, Code::kOk);
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

bool Dispatcher::SubmitAsOne(std::span<const CallArguments> given, void* handle) {
  if (given.size() * static_cast<size_t>(nranks()) > kMostChunks || !is_plain() || IsInsideReduction()) return false;
  const CallArguments& first = given.front();
  if (!MaySubmitAgain(given) || !AreAlike(given) || !CheckArguments(first, rank(), nranks()).ok()) return false;
  const auto has_own_order = [&](const CallArguments& a) {
    return HasOwnOrderInGroups(engine_.choice(), a.op, a.count * TypeBytes(a.type));
  };
  const bool own_order = has_own_order(first);
  for (const CallArguments& each : given) {
    if (each.count > kMostElements || each.created_op != 0 || has_own_order(each) != own_order) return false;
    if (each.count > 0 && !HasGoodBuffers(each)) return false;
  }
  if (!AreIndependent(given)) return false;
  CallQueue::Turn turn(queue_, CallQueue::Turn::OnlyLock());
  if (turn.is_stopping() || HasEnded()) return false;
  Request* const request = requests_->AddFused(given);
  request->discarded = handle == nullptr;
  if (handle != nullptr) GiveHandle(*request, handle);
  turn.Add(request);
  return true;
}

// Allreduces of a group may have to be combined, as on all ranks, and messages are sent at once.
bool Dispatcher::MayGoInTurn(const CallArguments& given, bool is_alone) const {
  const CollectiveKind kind = given.kind;
  if (kind == CollectiveKind::kNone || IsMessage(kind)) return false;
  if (kind == CollectiveKind::kAllreduce && !is_alone) return false;
  return given.created_op == 0 && (!IsDirect(kind) || HasMesh(nranks(), setup_->plan())) &&
         CheckArguments(given, rank(), nranks()).ok();
}

bool Dispatcher::SubmitInTurn(std::span<const CallArguments> given, void* handle) {
  if (given.size() > kMostAtOnce || !is_plain() || IsInsideReduction() || !MaySubmitAgain(given)) return false;
  for (const CallArguments& each : given) {
    if (!MayGoInTurn(each, given.size() == 1)) return false;
  }
  CallQueue::Turn turn(queue_, CallQueue::Turn::OnlyLock());
  if (turn.is_stopping() || HasEnded()) return false;
  const bool begins = turn.MayDriveMessages() && !driver_.paused();
  std::array<Request*, kMostAtOnce> made;
  Request* const whole = requests_->AddAll(given, handle == nullptr, made.data());
  if (handle != nullptr) GiveHandle(*whole, handle);
  for (Request* const each : std::span(made).first(given.size())) {
    ForgetUnused(&each->arguments, rank(), nranks());
    each->call = CallOf(each->arguments, nranks(), 0);
    turn.Add(each, each == made[0]);
  }
  if (begins) BeginNextOf(&turn, whole);
  return true;
}

void Dispatcher::BeginNextOf(CallQueue::Turn* turn, const Request* group) {
  Request* const next = turn->FirstCall();
  if (IsNextMember(next, *group) && MayDriveMember(turn, *next) && EqualsRecent(next->arguments))
    next->plan = engine_.plan();
  BeginNext(turn);
}

std::optional<Code> Dispatcher::WaitMembersAgain(CallQueue::Turn* turn, Request* group, Deadline until, bool* is_over) {
  std::optional<Code> code = Code::kOk;
  bool is_last = false;
  bool is_well = false;
  bool has_ended_any = false;
  *is_over = true;
  for (size_t bytes = 0; code == Code::kOk && !is_last;) {
    Request* const first = turn->FirstCall();
    if (!IsNextMember(first, *group) || !MayDriveMember(turn, *first)) break;
    *is_over = bytes < kMostBytesAtOnce;
    if (!*is_over) break;
    bytes +=
        kBytesOfAnyCall + SendEnd(first->arguments, rank(), nranks()) + RecvEnd(first->arguments, rank(), nranks());
    bool resumes = false;
    if (!EndsNow(*first, &resumes)) code = DriveOn(turn, *first, group, resumes, until);
    if (!code) {  // The driver has paused.
      turn->End();
      if (has_ended_any) ended_();
      return Code::kInProgress;
    }
    turn->RemoveFirst(*code);
    if (*code == Code::kOk) BeginNextOf(turn, group);
    // The group may be gone with its last call, if another thread has freed it.
    is_last = group->unfinished == 1;
    is_well = (group->code == Code::kInProgress || group->code == Code::kOk) && *code == Code::kOk;
    requests_->MarkDone(first, *code);
    has_ended_any = true;
  }
  turn->End();
  if (!has_ended_any) return std::nullopt;
  queue_->AnnounceEnd();
  ended_();
  return is_last && is_well ? code : std::nullopt;
}

bool Dispatcher::MayDriveMember(CallQueue::Turn* turn, const Request& member) {
  // Whoever has the turn may ask the driver.
  return MayDriveNow(member) && turn->MayDriveFirst(&member) && !driver_.paused();
}

}  // namespace annulus
