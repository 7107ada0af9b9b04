// The calls of Communicator on which the ranks agree first. An agreement is queued in the place of the calls and holds
// them: every rank queues one for each call or group, also where it refuses that, so that agreements match.
#include <new>

#include "collectives/comm/communicator.h"

namespace annulus {
namespace {

// The outcome of `prepare`, where memory ended too: the other ranks must be told.
template <class Prepare>
Status Caught(Prepare prepare) {
  try {
    return prepare();
  } catch (const std::bad_alloc&) {
    return {Code::kOutOfMemory, "no memory"};
  }
}

}  // namespace

Status Communicator::RunAgreed(const CallArguments& given) {
  ANNULUS_RETURN_IF_ERROR(CheckMayStart());
  if (options().priorities) ANNULUS_RETURN_IF_ERROR(dispatcher_.StartProgressThread());
  Request* const agreement = requests_.MakeAgreement(kDescriptionWords);
  Requests::Unqueued unqueued(&requests_, {&agreement, 1});
  Request* made = nullptr;
  const Status prepared = Caught([&] {
    CallArguments call = given;
    std::shared_ptr<const UserReduction> keep;
    ANNULUS_RETURN_IF_ERROR(Complete(&call, &keep));
    Request* const request = requests_.Make(call);
    Requests::Unqueued unheld(&requests_, {&request, 1});
    request->keep = std::move(keep);
    dispatcher_.Hold(agreement, {&call, 1}, {&request, 1});
    unheld.Keep();
    made = request;
    return Status();
  });
  unqueued.Keep();
  if (!prepared.ok()) {
    JoinAgreement(agreement, {&given, 1}, DescribeRefusal(prepared.code(), given.kind, 1), true);
    return Refuse(prepared);
  }
  dispatcher_.Queue(agreement);
  dispatcher_.Help(made, kNoDeadline);
  return requests_.Release(made);
}

Status Communicator::SubmitAgreed(std::span<const CallArguments> given, const Give& give, size_t* refused) {
  ANNULUS_RETURN_IF_ERROR(CheckMayStart());
  Request* const agreement = requests_.MakeAgreement(kDescriptionWords);
  Requests::Unqueued unqueued(&requests_, {&agreement, 1});
  *refused = given.size();
  const Status submitted = Caught([&] { return SubmitNow(given, give, refused, agreement); });
  const bool has_ended = !submitted.ok() && submitted.message().empty();
  if (has_ended) return submitted;
  unqueued.Keep();
  if (submitted.ok()) return submitted;
  const CallArguments& call = given[*refused < given.size() ? *refused : 0];
  JoinAgreement(agreement, given, DescribeRefusal(submitted.code(), call.kind, given.size()), false);
  return submitted;
}

Status Communicator::RefuseCalls(const Status& status, std::span<const CallArguments> calls, bool waits) {
  if (AgreesFirst(calls) && CheckMayStart().ok()) {
    const auto is_known = [](const CallArguments& call) { return call.kind != CollectiveKind::kNone; };
    const CollectiveKind kind = std::ranges::find_if(calls, is_known)->kind;
    JoinAgreement(requests_.MakeAgreement(kDescriptionWords), calls, DescribeRefusal(status.code(), kind, calls.size()),
                  waits);
  }
  return Refuse(status);
}

void Communicator::JoinAgreement(Request* agreement, std::span<const CallArguments> calls,
                                 const CallDescription& refusal, bool waits) {
  // Where rank 0 chooses the next call by priority, it must not go on to one that the others queue only after this.
  waits = waits || (options().priorities && rank() == 0);
  dispatcher_.HoldNone(agreement, calls);
  agreement->discarded = !waits;
  Put(refusal, agreement->numbers);
  // Without a progress thread the next thread that waits drives this too, unless calls go by priority.
  const bool is_driven = !options().priorities || dispatcher_.StartProgressThread().ok();
  if (!waits && is_driven) static_cast<void>(dispatcher_.StartProgressThread());
  if (is_driven) dispatcher_.Queue(agreement);
  if (is_driven && waits) dispatcher_.Help(agreement, kNoDeadline);
  if (!is_driven || waits) static_cast<void>(requests_.Release(agreement));
}

}  // namespace annulus
