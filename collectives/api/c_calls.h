// What the named calls and annulus_run and annulus_submit share.
//
// Threads: any.
#pragma once

#include <optional>
#include <span>

#include "collectives/annulus.h"
#include "collectives/api/c_api.h"

namespace annulus::c_api {

// A number beyond a byte must stay invalid after the cast.
inline DataType TypeOf(int type) { return static_cast<DataType>(type < 0 || type > 0xff ? 0xff : type); }

inline void SetOp(annulus_op_t op, CallArguments* arguments) {
  const int number = static_cast<int>(op);
  const bool built_in = number >= 0 && number < Operations::kFirstNumber;
  // The wire name of a user-defined operation is looked up later.
  arguments->op = static_cast<ReduceOp>(built_in ? number : 0xff);
  arguments->created_op = built_in ? 0 : number;
}

// Run for what no short cut has done; `again` is what came of that.
annulus_status_t RunInFull(annulus_comm_t* comm, const CallArguments& arguments, std::optional<Code> again);
// A call that repeats a recent small one, or a small message, is over before anything else is looked at. Inlined, so
// that each function knows its kind.
[[gnu::always_inline]] inline annulus_status_t Run(annulus_comm_t* comm, const CallArguments& arguments) {
  if (comm == nullptr) return Reject("comm is null");
  return Guarded([&] {
    const std::optional<Code> again = Unwrap(comm)->RunAgain(arguments);
    if (again == Code::kOk) [[likely]]
      return ANNULUS_OK;
    return RunInFull(comm, arguments, again);
  });
}

// The outcome of calls that the C API refuses itself, because of `call`. Where ranks agree first, the others are told;
// with `waits`, this returns when they are.
annulus_status_t Refuse(annulus_comm_t* comm, const Status& status, std::span<const CallArguments> calls,
                        const CallArguments& call, bool waits);

// Submit for what no short cut takes.
annulus_status_t SubmitInFull(annulus_comm_t* comm, std::span<const CallArguments> calls, annulus_request_t** request);
// `request` may be null.
inline annulus_status_t Submit(annulus_comm_t* comm, std::span<const CallArguments> calls,
                               annulus_request_t** request) {
  return Guarded([&] {
    // A small call that repeats a recent one is queued, and small messages move, before anything else is looked at.
    if (Unwrap(comm)->SubmitAgain(calls, request)) [[likely]]
      return ANNULUS_OK;
    return SubmitInFull(comm, calls, request);
  });
}

// Makes both calls, which are messages, and returns when both have ended.
annulus_status_t Exchange(annulus_comm_t* comm, const CallArguments& send, const CallArguments& recv);

}  // namespace annulus::c_api
