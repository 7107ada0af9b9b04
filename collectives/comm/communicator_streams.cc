// The calls of Communicator on devices: whether these still are what they were; calls in streams, and in graphs: what a
// capture keeps of them, and what a launch of the graph does.
#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "collectives/comm/communicator.h"

namespace annulus {
namespace {

// Why calls cannot be part of a graph; OK: they can.
Status CheckCaptured(std::span<const CallArguments> calls, bool has_request, bool agrees_first, bool by_priority) {
  if (has_request) {
    return Status::Invalid(
        "request is not NULL, but stream is captured into a graph: each launch makes the call again, and "
        "annulus_comm_verdict tells of failures");
  }
  const auto has_done = [](const CallArguments& call) { return call.done() != nullptr; };
  if (std::ranges::any_of(calls, has_done))
    return Status::Invalid("done is set, but stream is captured into a graph: each launch makes the call again");
  const auto tells = [](const CallArguments& call) {
    return call.options != nullptr && call.options->received != nullptr;
  };
  if (std::ranges::any_of(calls, tells))
    return Status::Invalid("received is set, but stream is captured into a graph: each launch makes the call again");
  if (agrees_first) return {Code::kUnsupported, "stream is captured into a graph, where ranks cannot agree first"};
  if (by_priority) return {Code::kUnsupported, "stream is captured into a graph, but priorities are on"};
  return Status();
}

// Forgets a captured call that could not be enqueued, for want of memory too.
struct Uncaptured {
  ~Uncaptured() {
    if (is_captured) return;
    if (streams->replays()->Remove(call)) {
      streams->Recycle(call);
    } else {
      models->Keep();  // The graph has gone meanwhile, and the thread for graphs has recycled the place and the models.
    }
  }

  StreamOrder* streams;
  GraphCall* call;
  Requests::Unqueued* models;
  bool is_captured = false;
};

}  // namespace

void Communicator::OpenStreams() {
  const size_t limit = static_cast<size_t>(options().memory_bytes);
  const size_t most = limit == 0 ? SIZE_MAX : limit - std::min(limit, fixed_memory_.total());
  dispatcher_.OpenStaging(most / 2);  // Half of the memory stays for calls in streams and for requests.
  StreamOrder::Folds folds;
  folds.memory_bytes = options().priorities ? 0 : static_cast<size_t>(options().stream_fold_bytes);
  folds.exchanges = options().stream_exchanges;
  folds.can = options().device_reduce != ReduceOn::kCpu;
  folds.may_be = [this](const CallArguments& call) { return dispatcher_.MayBeOneFold(call); };
  streams_.Open(resources().domains, most - dispatcher_.StagingBytes(), std::move(folds),
                {[this](const GraphReplays::Captured& captured) { Replay(captured); },
                 [this](const GraphReplays::Captured& captured) { ForgetCaptured(captured); },
                 [this](const std::string& why) { AbortFor(why); }},
                [this](const std::string& why) { AbortFor(why); });
}

// Much of it may follow when it is queued already, and then end while it does.
void Communicator::QueueInStream(std::span<Request* const> queued, Request* agreement, StreamOrder::Call* call) {
  const bool may_call = callbacks_.has_started() && call->place() != nullptr;
  if (may_call) callbacks_.Enter(call->place());
  QueueAll(queued, agreement);
  FinishInStream(call);
  if (may_call) callbacks_.Entered();
}

void Communicator::FinishInStream(StreamOrder::Call* call) {
  try {
    const Status finished = call->Finish();
    if (!finished.ok()) Abort("a call could not be put into its stream as a whole: " + finished.message());
  } catch (const std::bad_alloc&) {
    AbortWithoutMemory();
  }
}

// If this fails too, the other ranks learn of it at their deadlines.
void Communicator::AbortFor(const std::string& why) {
  try {
    Abort(why);
  } catch (const std::bad_alloc&) {
    AbortWithoutMemory();
  }
}

void Communicator::AbortWithoutMemory() {
  try {
    Abort("a rank has no memory for a call in a stream");
  } catch (const std::bad_alloc&) {
    streams_.OpenAll();
  }
}

// Memory of a GPU that was reset is no GPU's any more, and so refused before the queue is asked. Calls in streams ask
// when they take a place.
Status Communicator::PrepareDevices(CallArguments* a) {
  Status prepared = PrepareBuffers(a);
  DomainQueue* const queue = a->send_queue != nullptr ? a->send_queue : a->recv_queue;
  if (queue == nullptr || (a->options != nullptr && a->options->on_stream)) return prepared;
  Status usable = queue->Check();
  if (usable.ok()) return prepared;
  Abort(usable.message());
  return usable;
}

Nanoseconds Communicator::LongestTimeout(std::span<const CallArguments> calls) const {
  Nanoseconds longest = 0;
  for (const CallArguments& call : calls)
    longest = std::max(longest, call.timeout() > 0 ? call.timeout() : dispatcher_.call_timeout());
  return longest;
}

Status Communicator::Capture(std::span<const CallArguments> calls,
                             std::span<std::shared_ptr<const UserReduction>> keeps, const Give& give,
                             const Request* agreement, StreamOrder::Call* in_stream) {
  const Status valid = CheckCaptured(calls, give != nullptr, agreement != nullptr, options().priorities != 0);
  if (!valid.ok()) return Refuse(valid);
  ANNULUS_RETURN_IF_ERROR(streams_.replays()->Start());
  if (std::ranges::any_of(keeps, [](const auto& keep) { return keep != nullptr; }))
    ANNULUS_RETURN_IF_ERROR(callbacks_.Start());  // For ForgetCaptured.
  GraphReplays::Captured captured;
  captured.call = in_stream->graph_call();
  captured.capture = in_stream->capture();
  captured.timeout = LongestTimeout(calls);
  captured.models.resize(calls.size());
  ANNULUS_RETURN_IF_ERROR(requests_.MakeWithin(BudgetFor(calls), calls, true, captured.models.data()));
  Requests::Unqueued unqueued(&requests_, captured.models);
  for (size_t i = 0; i < calls.size(); ++i) captured.models[i]->keep = std::move(keeps[i]);
  streams_.replays()->Add(captured);
  Uncaptured undo{&streams_, captured.call, &unqueued};
  const Status enqueued = in_stream->Enqueue({}, {});
  undo.is_captured = enqueued.ok();
  if (enqueued.ok()) unqueued.Keep();
  return enqueued.ok() ? enqueued : Refuse(enqueued);
}

Status Communicator::CheckBesideGraphs(std::span<const CallArguments> calls, bool agrees_first) {
  const auto has_stream = [](const CallArguments& call) { return call.options != nullptr && call.options->on_stream; };
  if (streams_.replays() == nullptr || !streams_.replays()->has_captured() || !std::ranges::any_of(calls, has_stream))
    return Status();
  // Neither gives way to the calls of a launch for which its stream may wait.
  if (agrees_first)
    return {Code::kUnsupported, "calls in streams cannot agree first where a communicator has calls in graphs"};
  const auto is_from_any = [](const CallArguments& call) {
    return call.kind == CollectiveKind::kRecv && call.root == ANNULUS_ANY_PEER;
  };
  if (std::ranges::none_of(calls, is_from_any)) return Status();
  return {Code::kUnsupported, "a receive from any rank cannot be in a stream where a communicator has calls in graphs"};
}

void Communicator::Replay(const GraphReplays::Captured& captured) {
  if (!CheckMayStart().ok()) return captured.call->End();
  try {
    ReplayWithMemory(captured);
  } catch (const std::bad_alloc&) {
    AbortWithoutMemory();
  }
}

void Communicator::ReplayWithMemory(const GraphReplays::Captured& captured) {
  std::vector<CallArguments> calls;
  for (const Request* const model : captured.models) calls.push_back(model->arguments);
  std::vector<Request*> made(calls.size());
  static_cast<void>(requests_.MakeWithin(RequestBudget(), calls, true, made.data()));
  for (size_t i = 0; i < made.size(); ++i) made[i]->keep = captured.models[i]->keep;
  Requests::Unqueued unqueued(&requests_, made);
  const std::vector<Request*> queued = made.size() == 1 ? made : Arrange(made, &unqueued);
  dispatcher_.NoteLabels(queued);
  for (Request* const each : made) each->stream = captured.call;
  for (Request* const each : queued) each->stream = captured.call;
  if (!captured.call->Begin(static_cast<int>(made.size()))) return;
  unqueued.Keep();
  QueueAll(queued, nullptr);
}

// A release function of the user's may take its time, for which launches must not wait: it is called where callbacks
// are.
void Communicator::ForgetCaptured(const GraphReplays::Captured& captured) {
  streams_.Recycle(captured.call);
  const bool has_operation =
      std::ranges::any_of(captured.models, [](const Request* model) { return model->keep != nullptr; });
  for (Request* const model : captured.models) static_cast<void>(requests_.Release(model));
  const auto release = [](void* self, annulus_status_t) { static_cast<Communicator*>(self)->ReleaseOperations(); };
  if (!has_operation) return;
  std::unique_ptr<Callbacks::Place> place(new (std::nothrow) Callbacks::Place());
  if (place == nullptr) return ReleaseOperations();  // Late rather than never.
  static_cast<void>(callbacks_.Add({release, this}, std::move(place), false));
}

}  // namespace annulus
