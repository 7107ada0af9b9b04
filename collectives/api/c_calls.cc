// The C API: calls as data, annulus_run and annulus_submit.
#include "collectives/api/c_calls.h"

#include <span>
#include <string>
#include <vector>

#include "collectives/api/structs.h"

namespace {

using annulus::CallArguments;
using annulus::CallOptions;
using annulus::Code;
using annulus::CollectiveKind;
using annulus::Communicator;
using annulus::RequestHandle;
using annulus::Status;
using annulus::c_api::Guarded;
using annulus::c_api::Outcome;
using annulus::c_api::Reject;
using annulus::c_api::SetOp;
using annulus::c_api::TypeOf;
using annulus::c_api::Unwrap;
using annulus::c_api::Wrap;

static_assert(static_cast<int>(CollectiveKind::kAllreduce) == ANNULUS_CALL_ALLREDUCE);
static_assert(static_cast<int>(CollectiveKind::kReduceScatter) == ANNULUS_CALL_REDUCE_SCATTER);
static_assert(static_cast<int>(CollectiveKind::kAllgather) == ANNULUS_CALL_ALLGATHER);
static_assert(static_cast<int>(CollectiveKind::kBroadcast) == ANNULUS_CALL_BROADCAST);
static_assert(static_cast<int>(CollectiveKind::kReduce) == ANNULUS_CALL_REDUCE);
static_assert(static_cast<int>(CollectiveKind::kBarrier) == ANNULUS_CALL_BARRIER);
static_assert(static_cast<int>(CollectiveKind::kGather) == ANNULUS_CALL_GATHER);
static_assert(static_cast<int>(CollectiveKind::kScatter) == ANNULUS_CALL_SCATTER);
static_assert(static_cast<int>(CollectiveKind::kAlltoall) == ANNULUS_CALL_ALLTOALL);
static_assert(static_cast<int>(CollectiveKind::kAllgatherv) == ANNULUS_CALL_ALLGATHERV);
static_assert(static_cast<int>(CollectiveKind::kReduceScatterv) == ANNULUS_CALL_REDUCE_SCATTERV);
static_assert(static_cast<int>(CollectiveKind::kGatherv) == ANNULUS_CALL_GATHERV);
static_assert(static_cast<int>(CollectiveKind::kScatterv) == ANNULUS_CALL_SCATTERV);
static_assert(static_cast<int>(CollectiveKind::kAlltoallv) == ANNULUS_CALL_ALLTOALLV);
static_assert(static_cast<int>(CollectiveKind::kSend) == ANNULUS_CALL_SEND);
static_assert(static_cast<int>(CollectiveKind::kRecv) == ANNULUS_CALL_RECV);

constexpr const char* kType = "annulus_call_t";

// Every version has the fields up to this one.
constexpr size_t kSmallestBytes = offsetof(annulus_call_t, timeout_ms);

constexpr int64_t kMostTimeoutMs = 86'400'000;  // One day, as for the communicator's.

Status NotBuilt(const char* field) {
  return {Code::kUnsupported, std::string(field) + " of " + kType + " is not supported by this version of Annulus"};
}

// What has its place in a call but is not built yet.
Status CheckUnbuilt(const annulus_call_t& call) {
  if (call.stream_kind != 0) return NotBuilt("stream_kind");
  if (call.stream != nullptr) return Status::Invalid("stream is set, but stream_kind is 0");
  if (call.tag != 0) return NotBuilt("tag");
  if (call.wire != 0 && call.wire != ANNULUS_WIRE_EXACT) return NotBuilt("wire");
  if (call.flags != 0) return NotBuilt("flags");
  if (call.kind == ANNULUS_CALL_RECV && call.root == ANNULUS_ANY_PEER) return NotBuilt("root ANNULUS_ANY_PEER");
  return Status();
}

bool HasSendParts(CollectiveKind kind) {
  return kind == CollectiveKind::kReduceScatterv || kind == CollectiveKind::kScatterv ||
         kind == CollectiveKind::kAlltoallv;
}

bool HasRecvParts(CollectiveKind kind) {
  return kind == CollectiveKind::kAllgatherv || kind == CollectiveKind::kGatherv || kind == CollectiveKind::kAlltoallv;
}

// The fields that the kind uses; the others stay as they are, since nothing may look at what a program left there.
void CopyUsed(const annulus_call_t& call, CallArguments* arguments) {
  const CollectiveKind kind = arguments->kind;
  if (kind == CollectiveKind::kBarrier) return;
  arguments->type = TypeOf(call.type);
  if (annulus::Reduces(kind)) SetOp(call.op, arguments);
  arguments->root = call.root;
  if (kind != CollectiveKind::kRecv) arguments->sendbuf = call.sendbuf;
  if (kind != CollectiveKind::kSend) arguments->recvbuf = call.recvbuf;
  if (kind != CollectiveKind::kAlltoallv) arguments->count = call.count;
  if (HasSendParts(kind)) arguments->send_layout = {call.sendcounts, call.sendoffsets};
  if (HasRecvParts(kind)) arguments->recv_layout = {call.recvcounts, call.recvoffsets};
}

// The options of `arguments` lie in *options. A call that is refused has its kind and label there too.
Status ToArguments(const annulus_call_t* given, CallArguments* arguments, CallOptions* options) {
  annulus_call_t call{};
  ANNULUS_RETURN_IF_ERROR(annulus::c_api::TakeStruct(given, kSmallestBytes, kType, &call));
  if (call.kind < ANNULUS_CALL_ALLREDUCE || call.kind > ANNULUS_CALL_RECV)
    return Status::Invalid("kind is " + std::to_string(call.kind) + ", which is no annulus_kind_t");
  arguments->kind = static_cast<CollectiveKind>(call.kind);
  *options = {0, call.label, call.done, call.context, call.priority};
  arguments->options = options;
  ANNULUS_RETURN_IF_ERROR(CheckUnbuilt(call));
  if (call.timeout_ms < 0 || call.timeout_ms > kMostTimeoutMs) {
    return Status::Invalid("timeout_ms is " + std::to_string(call.timeout_ms) + "; allowed: 0 to " +
                           std::to_string(kMostTimeoutMs));
  }
  options->timeout = call.timeout_ms * annulus::kMillisecond;
  CopyUsed(call, arguments);
  return Status();
}

// The struct at `index` of an array whose elements have the first one's size, which may differ from this library's.
const annulus_call_t* At(const annulus_call_t* calls, size_t index) {
  return reinterpret_cast<const annulus_call_t*>(reinterpret_cast<const char*>(calls) + index * calls->struct_bytes);
}

// *refused becomes the index of the call that is refused.
Status ToGroup(const annulus_call_t* calls, std::span<CallArguments> group, std::span<CallOptions> options,
               size_t* refused) {
  for (size_t i = 0; i < group.size(); ++i) {
    const annulus_call_t* const call = At(calls, i);
    Status status = call->struct_bytes == calls->struct_bytes
                        ? ToArguments(call, &group[i], &options[i])
                        : Status::Invalid("struct_bytes differs from that of call 0");
    if (status.ok()) continue;
    *refused = i;
    return {status.code(), "call " + std::to_string(i) + " of the group: " + status.message()};
  }
  return Status();
}

// The outcome of a call that this file refused.
annulus_status_t Refused(annulus_comm_t* comm, const Status& status, const CallArguments& call) {
  return Outcome(Unwrap(comm), Unwrap(comm)->Refuse(status), call.kind, call.label());
}

annulus_status_t SubmitGroup(annulus_comm_t* comm, const annulus_call_t* calls, size_t ncalls,
                             annulus_request_t** request) {
  std::vector<CallArguments> group;
  if (ncalls > group.max_size()) return Reject(Status::Invalid("ncalls is " + std::to_string(ncalls)));
  group.resize(ncalls);
  std::vector<CallOptions> options(ncalls);
  size_t refused = 0;
  const Status status = ToGroup(calls, group, options, &refused);
  return status.ok() ? annulus::c_api::Submit(comm, group, request) : Refused(comm, status, group[refused]);
}

}  // namespace

annulus_status_t annulus::c_api::Submit(annulus_comm_t* comm, std::span<const CallArguments> calls,
                                        annulus_request_t** request) {
  return Guarded([&] {
    // Written before the work is queued: a callback may look at it.
    const auto give = [request](RequestHandle queued) { *request = Wrap(queued); };
    size_t refused = 0;
    const Status status =
        Unwrap(comm)->Submit(calls, request != nullptr ? Communicator::Give(give) : nullptr, &refused);
    const CallArguments* const call = refused < calls.size() ? &calls[refused] : nullptr;
    return Outcome(Unwrap(comm), status, call != nullptr ? call->kind : CollectiveKind::kNone,
                   call != nullptr ? call->label() : nullptr);
  });
}

annulus_status_t annulus_run(annulus_comm_t* comm, const annulus_call_t* call) {
  if (comm == nullptr || call == nullptr) return Reject(comm == nullptr ? "comm is null" : "call is null");
  return Guarded([&] {
    CallArguments arguments;
    CallOptions options;
    Status status = ToArguments(call, &arguments, &options);
    if (status.ok() && options.done != nullptr)
      status = Status::Invalid("done is set, which is for annulus_submit: this call returns when it has ended");
    return status.ok() ? annulus::c_api::Run(comm, arguments) : Refused(comm, status, arguments);
  });
}

annulus_status_t annulus_submit(annulus_comm_t* comm, const annulus_call_t* calls, size_t ncalls,
                                annulus_request_t** request) {
  if (request != nullptr) *request = nullptr;
  if (comm == nullptr) return Reject("comm is null");
  if (calls == nullptr && ncalls > 0) return Reject("calls is null");
  return Guarded([&] {
    if (ncalls != 1) return SubmitGroup(comm, calls, ncalls, request);
    CallArguments one;
    CallOptions options;
    const Status status = ToArguments(calls, &one, &options);
    return status.ok() ? annulus::c_api::Submit(comm, {&one, 1}, request) : Refused(comm, status, one);
  });
}
