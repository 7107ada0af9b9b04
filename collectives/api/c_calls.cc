// The C API: calls as data, annulus_run and annulus_submit.
#include "collectives/api/c_calls.h"

#include <array>
#include <span>
#include <string>
#include <vector>

#include "collectives/api/process_state.h"
#include "collectives/api/structs.h"
#include "collectives/core/collective.h"

namespace {

using annulus::CallArguments;
using annulus::CallOptions;
using annulus::Code;
using annulus::CollectiveKind;
using annulus::Communicator;
using annulus::Holding;
using annulus::RequestHandle;
using annulus::Status;
using annulus::c_api::Guarded;
using annulus::c_api::Outcome;
using annulus::c_api::Reject;
using annulus::c_api::SetOp;
using annulus::c_api::TypeOf;
using annulus::c_api::Unwrap;
using annulus::c_api::Wrap;

#define ANNULUS_INTERNAL_COLLECTIVE(...)
#define ANNULUS_COLLECTIVE(Name, name, NAME, number, ...) static_assert(number == ANNULUS_CALL_##NAME);
#include "collectives/core/collectives.inc"
#undef ANNULUS_COLLECTIVE

// Whether users may ask for the kind of this number.
bool IsKind(int32_t kind) {
  switch (kind) {
#define ANNULUS_COLLECTIVE(Name, name, NAME, ...) case ANNULUS_CALL_##NAME:
#include "collectives/core/collectives.inc"
#undef ANNULUS_COLLECTIVE
#undef ANNULUS_INTERNAL_COLLECTIVE
    return true;
    default:
      return false;
  }
}

constexpr const char* kType = "annulus_call_t";

// Every version has the fields up to this one.
constexpr size_t kSmallestBytes = offsetof(annulus_call_t, timeout_ms);

// Most calls of a group that need no memory here. An exchange is two.
constexpr size_t kFewCalls = 4;

constexpr int64_t kMostTimeoutMs = 86'400'000;  // One day, as for the communicator's.

Status NotBuilt(const char* field) {
  return {Code::kUnsupported, std::string(field) + " of " + kType + " is not supported by this version of Annulus"};
}

// What has its place in a call but is not built yet.
Status CheckUnbuilt(const annulus_call_t& call) {
  if (call.stream_kind == 0 && call.stream == nullptr && call.wire == 0 && call.flags == 0) return Status();
  if (call.stream_kind != 0 && call.stream_kind != ANNULUS_STREAM_CUDA) return NotBuilt("stream_kind");
  if (call.stream_kind == 0 && call.stream != nullptr) return Status::Invalid("stream is set, but stream_kind is 0");
  const auto& process = annulus::c_api::OfProcess();
  if (call.stream_kind != 0 && !process.why_no_cuda.empty())
    return {Code::kUnsupported, "stream_kind is ANNULUS_STREAM_CUDA, but " + process.why_no_cuda};
  if (call.stream_kind != 0 && call.priority != 0) {
    return Status::Invalid("priority is " + std::to_string(call.priority) +
                           ", but stream orders the call; calls in streams cannot overtake each other");
  }
  if (call.wire != 0 && call.wire != ANNULUS_WIRE_EXACT) return NotBuilt("wire");
  if ((call.flags & ~uint64_t{ANNULUS_AGREE_FIRST}) != 0) return NotBuilt("flags");
  const bool is_message = call.kind == ANNULUS_CALL_SEND || call.kind == ANNULUS_CALL_RECV;
  if (call.flags != 0 && is_message)
    return Status::Invalid("flags has ANNULUS_AGREE_FIRST, which is for collectives; a message concerns two ranks");
  return Status();
}

// The fields of messages alone.
Status ReadMessageFields(const annulus_call_t& call, CallOptions* options) {
  const bool receives = call.kind == ANNULUS_CALL_RECV;
  const int32_t least = receives ? ANNULUS_ANY_TAG : 0;
  if (call.tag < least)
    return Status::Invalid("tag is " + std::to_string(call.tag) + "; allowed: " + std::to_string(least) + " or more");
  options->tag = call.tag;
  if (!receives || call.received == nullptr) return Status();
  options->received = call.received;
  return annulus::c_api::CheckStructBytes(call.received->struct_bytes, sizeof(annulus_received_t),
                                          "annulus_received_t");
}

// Whether the root's buffers hold parts that may differ in size: then all ranks give their layout.
bool HasSendParts(CollectiveKind kind) {
  return annulus::HasVariableParts(kind) && annulus::SendHolds(kind, true) == Holding::kParts;
}
bool HasRecvParts(CollectiveKind kind) {
  return annulus::HasVariableParts(kind) && annulus::RecvHolds(kind, true) == Holding::kParts;
}

// The fields that the kind uses; the others stay as they are, since nothing may look at what a program left there.
void CopyUsed(const annulus_call_t& call, CallArguments* arguments) {
  const CollectiveKind kind = arguments->kind;
  if (kind == CollectiveKind::kBarrier) return;
  arguments->type = TypeOf(call.type);
  if (annulus::Reduces(kind)) SetOp(call.op, arguments);
  arguments->root = call.root;
  const bool has_send_parts = HasSendParts(kind);
  const bool has_recv_parts = HasRecvParts(kind);
  if (annulus::SendHolds(kind, true) != Holding::kNothing) arguments->sendbuf = call.sendbuf;
  if (annulus::RecvHolds(kind, true) != Holding::kNothing) arguments->recvbuf = call.recvbuf;
  if (!has_send_parts || !has_recv_parts) arguments->count = call.count;
  if (has_send_parts) arguments->send_layout = {call.sendcounts, call.sendoffsets};
  if (has_recv_parts) arguments->recv_layout = {call.recvcounts, call.recvoffsets};
}

// ToArguments for a call of this version.
Status OfKnown(const annulus_call_t& call, CallArguments* arguments, CallOptions* options) {
  if (!IsKind(call.kind))
    return Status::Invalid("kind is " + std::to_string(call.kind) + ", which is no annulus_kind_t");
  arguments->kind = static_cast<CollectiveKind>(call.kind);
  *options = {0,
              call.label,
              call.done,
              call.context,
              call.priority,
              (call.flags & ANNULUS_AGREE_FIRST) != 0,
              call.stream_kind != 0,
              call.stream};
  arguments->options = options;
  if (call.timeout_ms < 0 || call.timeout_ms > kMostTimeoutMs) {
    return Status::Invalid("timeout_ms is " + std::to_string(call.timeout_ms) + "; allowed: 0 to " +
                           std::to_string(kMostTimeoutMs));
  }
  options->timeout = call.timeout_ms * annulus::kMillisecond;  // Agreements have it also if the call is refused.
  ANNULUS_RETURN_IF_ERROR(CheckUnbuilt(call));
  CopyUsed(call, arguments);
  return annulus::IsMessage(arguments->kind) ? ReadMessageFields(call, options) : Status();
}

// The options of `arguments` lie in *options. A call that is refused has its kind and label there too.
Status ToArguments(const annulus_call_t* given, CallArguments* arguments, CallOptions* options) {
  if (given->struct_bytes == sizeof *given) [[likely]]
    return OfKnown(*given, arguments, options);
  annulus_call_t call{};
  ANNULUS_RETURN_IF_ERROR(annulus::c_api::ReadStruct(given, kSmallestBytes, kType, &call));
  return OfKnown(call, arguments, options);
}

// A call of which no option is set takes the ways of those that have none. But a receive from any rank must have come
// as a struct.
void DropUnusedOptions(CallArguments* arguments) {
  const bool is_used = arguments->options != nullptr && arguments->options->used();
  if (!is_used && arguments->root != ANNULUS_ANY_PEER) arguments->options = nullptr;
}

// The struct at `index` of an array whose elements have the first one's size, which may differ from this library's.
const annulus_call_t* At(const annulus_call_t* calls, size_t index) {
  return reinterpret_cast<const annulus_call_t*>(reinterpret_cast<const char*>(calls) + index * calls->struct_bytes);
}

// *refused becomes the index of the first call that is refused. The others are looked at all the same: they may ask for
// an agreement.
Status ToGroup(const annulus_call_t* calls, std::span<CallArguments> group, std::span<CallOptions> options,
               size_t* refused) {
  if (group.empty()) return Status();
  *refused = 0;
  ANNULUS_RETURN_IF_ERROR(annulus::c_api::CheckStructBytes(calls->struct_bytes, kSmallestBytes, kType));
  Status refusal;
  for (size_t i = 0; i < group.size(); ++i) {
    const annulus_call_t* const call = At(calls, i);
    Status status = call->struct_bytes == calls->struct_bytes
                        ? ToArguments(call, &group[i], &options[i])
                        : Status::Invalid("struct_bytes differs from that of call 0");
    if (status.ok() || !refusal.ok()) continue;
    *refused = i;
    refusal = {status.code(), "call " + std::to_string(i) + " of the group: " + status.message()};
  }
  return refusal;
}

annulus_status_t SubmitIn(std::span<CallArguments> group, std::span<CallOptions> options, annulus_comm_t* comm,
                          const annulus_call_t* calls, annulus_request_t** request) {
  size_t refused = 0;
  const Status status = ToGroup(calls, group, options, &refused);
  return status.ok() ? annulus::c_api::Submit(comm, group, request)
                     : annulus::c_api::Refuse(comm, status, group, group[refused], false);
}

annulus_status_t SubmitGroup(annulus_comm_t* comm, const annulus_call_t* calls, size_t ncalls,
                             annulus_request_t** request) {
  if (ncalls <= kFewCalls) {
    std::array<CallArguments, kFewCalls> group;
    std::array<CallOptions, kFewCalls> options;
    return SubmitIn({group.data(), ncalls}, {options.data(), ncalls}, comm, calls, request);
  }
  std::vector<CallArguments> group;
  if (ncalls > group.max_size()) return Reject(Status::Invalid("ncalls is " + std::to_string(ncalls)));
  group.resize(ncalls);
  std::vector<CallOptions> options(ncalls);
  return SubmitIn(group, options, comm, calls, request);
}

}  // namespace

annulus_status_t annulus::c_api::Refuse(annulus_comm_t* comm, const Status& status,
                                        std::span<const CallArguments> calls, const CallArguments& call, bool waits) {
  const Status outcome = Unwrap(comm)->RefuseCalls(status, calls, waits);
  return Outcome(Unwrap(comm), outcome, call.kind, call.label());
}

annulus_status_t annulus::c_api::RunInFull(annulus_comm_t* comm, const CallArguments& arguments,
                                           std::optional<Code> again) {
  const Status status = again ? Status(*again) : Unwrap(comm)->Run(arguments);
  return Outcome(Unwrap(comm), status, arguments.kind, arguments.label());
}

annulus_status_t annulus::c_api::SubmitInFull(annulus_comm_t* comm, std::span<const CallArguments> calls,
                                              annulus_request_t** request) {
  if (request != nullptr) *request = nullptr;
  // Written before the work is queued: a callback may look at it.
  const auto give = [request](RequestHandle queued) { *request = Wrap(queued); };
  size_t refused = 0;
  const Status status = Unwrap(comm)->Submit(calls, request != nullptr ? Communicator::Give(give) : nullptr, &refused);
  const CallArguments* const call = refused < calls.size() ? &calls[refused] : nullptr;
  return Outcome(Unwrap(comm), status, call != nullptr ? call->kind : CollectiveKind::kNone,
                 call != nullptr ? call->label() : nullptr);
}

annulus_status_t annulus::c_api::Exchange(annulus_comm_t* comm, const CallArguments& send, const CallArguments& recv) {
  if (comm == nullptr) return Reject("comm is null");
  return Guarded([&] {
    const auto done = Unwrap(comm)->ExchangeAtOnce(send, recv);
    if (done == annulus::Dispatcher::Exchanged::kBoth) [[likely]]
      return ANNULUS_OK;
    if (done == annulus::Dispatcher::Exchanged::kSent) return Run(comm, recv);
    bool blames_recv = false;
    const Status status = Unwrap(comm)->RunExchange(send, recv, &blames_recv);
    return Outcome(Unwrap(comm), status, blames_recv ? recv.kind : send.kind);
  });
}

annulus_status_t annulus_run(annulus_comm_t* comm, const annulus_call_t* call) {
  if (comm == nullptr || call == nullptr) return Reject(comm == nullptr ? "comm is null" : "call is null");
  return Guarded([&] {
    CallArguments arguments;
    CallOptions options;
    Status status = ToArguments(call, &arguments, &options);
    DropUnusedOptions(&arguments);
    if (status.ok() && options.done != nullptr)
      status = Status::Invalid("done is set, which is for annulus_submit: this call returns when it has ended");
    if (status.ok() && options.on_stream)
      status = Status::Invalid("stream is set, which is for annulus_submit: this call returns the outcome of the work");
    return status.ok() ? annulus::c_api::Run(comm, arguments)
                       : annulus::c_api::Refuse(comm, status, {&arguments, 1}, arguments, true);
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
    DropUnusedOptions(&one);
    return status.ok() ? annulus::c_api::Submit(comm, {&one, 1}, request)
                       : annulus::c_api::Refuse(comm, status, {&one, 1}, one, false);
  });
}
