#include "collectives/comm/dispatcher.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <new>
#include <utility>

#include "base/cpu_cache.h"
#include "base/thread.h"
#include "collectives/algorithms/table.h"
#include "collectives/calls/agreement.h"
#include "collectives/observe/trace.h"

namespace annulus {
namespace {

// The progress thread competes with the computation that it overlaps, so it spins only briefly before it sleeps.
constexpr WaitPolicy kBackgroundPolicy{5 * kMicrosecond, 10};

// A rank streams outputs when its buffers take more than this many times its share of the last-level cache. Measured on
// two cores that share 32 MiB: buffers of 4 MiB per rank are better left in the cache; from 16 MiB on streaming pays.
constexpr size_t kStreamCaches = 1;

}  // namespace

Dispatcher::Dispatcher(const DispatcherConfig& config)
    : setup_(config.setup),
      queue_(config.queue),
      failures_(config.failures),
      report_(config.report),
      requests_(config.requests),
      queues_(config.queues),
      ended_(config.ended),
      failed_(config.failed),
      engine_(rank(), setup_->plan(), setup_->topology(), &setup_->links(), setup_->monitor(),
              setup_->resources().domains),
      messages_(
          {rank(), nranks(), setup_->plan(), &setup_->links(), setup_->monitor(),
           setup_->options().timeout_ms * kMillisecond, queue_->has_posted(),
           [this](Message* message) { return FirstPosted(message); }, [this] { queue_->AcceptFirst(); },
           [this](void* cookie, int peer, int32_t tag) { FinishMessage(static_cast<Request*>(cookie), peer, tag); }}),
      driver_(&engine_, &messages_, &setup_->links(), queues_, setup_->reactor(), setup_->control(), setup_->monitor()),
      staging_(rank(), nranks()),
      calls_{.timeout = setup_->options().timeout_ms * kMillisecond},
      background_policy_(setup_->options().spin_us >= 0 ? setup_->wait_policy() : kBackgroundPolicy) {
  const size_t local_ranks = static_cast<size_t>(std::max(1, setup_->local_size()));
  engine_.set_stream_bytes(kStreamCaches * LastLevelCacheBytes() / local_ranks);
  if (setup_->wait_policy().spin == 0) engine_.ShareCore();
}

void Dispatcher::Stop() {
  if (queue_->Stop()) driver_.Interrupt();
  // A callback may be about to start a thread.
  std::thread ends;
  {
    const std::lock_guard<std::mutex> lock(progress_.start_mu);
    ends = std::move(progress_.thread);
  }
  if (ends.joinable()) ends.join();
}

void Dispatcher::Close() {
  Stop();
  // Devices use slots until they are drained, and links use memory of the engine and the messages until they are
  // closed.
  queues_->Drain();
  setup_->Close();
}

void Dispatcher::OpenStaging(size_t most_bytes) {
  const Options& options = setup_->options();
  // Who asks for the GPU's kernels gets them. A lone rank's calls are one copy or kernel as they are.
  const bool is_wanted = options.device_reduce != ReduceOn::kGpu && nranks() > 1 && !queues_->host_only();
  const size_t bytes = static_cast<size_t>(options.device_staged_bytes);
  if (is_wanted && bytes <= most_bytes) staging_.Open(setup_->resources().domains, bytes);
}

Status Dispatcher::Run(const CallArguments& arguments) {
  if (IsMessage(arguments.kind)) return RunMessage(arguments);
  if (!by_priority()) {
    CallQueue::Turn turn(queue_);
    // A communicator that failed since the caller looked must not be driven any more.
    if (turn && failures_->ended()) return Status(failures_->verdict().code);
    if (turn) {
      const Call call = CallOf(arguments, nranks(), turn.NextSequence());
      turn.Lengthen(call);
      const Code code = *Drive(arguments, nullptr, call, {setup_->wait_policy(), {}});
      turn.EndCall(arguments, code);
      return Status(code);
    }
  }
  // Do first what may fail: a request must not stay queued when the caller is told that it failed.
  if (by_priority()) ANNULUS_RETURN_IF_ERROR(StartProgressThread());
  Request* const request = requests_->Make(arguments);
  Queue(request);
  Help(request, kNoDeadline);
  return requests_->Release(request);
}

void Dispatcher::Help(Request* request, Deadline until) {
  bool has_looked = false;
  auto is_enough = [&] {
    if (!std::exchange(has_looked, true)) return false;
    return request->IsDone() || (until != kNoDeadline && Now() >= until);
  };
  const std::function<bool()> asks = std::ref(is_enough);
  while (!request->IsDone()) {
    {
      const CallQueue::Turn turn(queue_, {[request] { return request->IsDone(); }, until});
      if (turn) DriveQueue({setup_->wait_policy(), {&asks, until}});
    }
    ended_();
    if (until != kNoDeadline && Now() >= until) return;
  }
}

std::optional<Code> Dispatcher::CodeOf(Driver::Outcome outcome, const Verdict& verdict) {
  if (outcome == Driver::Outcome::kPaused) return std::nullopt;
  if (outcome == Driver::Outcome::kDone) return Code::kOk;
  Fail(verdict);
  return failures_->verdict().code;
}

bool Dispatcher::MayBeOneFold(const CallArguments& a) const {
  const bool has_kind = a.kind == CollectiveKind::kAllreduce || a.kind == CollectiveKind::kReduceScatter ||
                        a.kind == CollectiveKind::kAllgather;
  return has_kind && RowOf(engine_.choice().At(a.kind, a.count * TypeBytes(a.type))).takes_device_memory;
}

std::optional<Code> Dispatcher::Drive(const CallArguments& arguments, const Request* fused, const Call& call,
                                      const Manner& manner, const StreamFold* fold) {
  Verdict verdict;
  if (Trace* const trace = setup_->monitor()->trace(); trace != nullptr) trace->LabelNext(arguments.label());
  const bool stays = fused == nullptr && MayBeOneFold(arguments);
  Buffers buffers = stays ? BuffersOf(arguments) : staging_.BuffersFor(arguments, fused);
  buffers.fold = fold;
  return CodeOf(driver_.Run(call, buffers, LimitOf(arguments), manner.policy, manner.patience, &verdict), verdict);
}

void Dispatcher::DriveQueue(const Manner& manner) {
  do {
    bool is_stopping = false;
    Request* request = queue_->DriveFirst(&is_stopping);
    if (request == nullptr) {
      const auto over = [this] { return queue_->is_stopping() || queue_->HasCalls() || !queue_->HasMessages(); };
      if (over()) return;
      DriveMessages(over, manner);
      continue;
    }
    std::optional<Code> code = Code::kAborted;
    if (!is_stopping || driver_.paused() || driver_.has_begun()) code = DriveNext(&request, manner);
    if (!code && queue_->HasOvertaken()) continue;
    if (!code) return;
    EndQueued(request, *code);
  } while (!(*manner.patience.is_over)());
}

std::optional<Code> Dispatcher::DriveNext(Request** next, const Manner& manner) {
  if (driver_.has_begun()) return ResumeAgain(**next, manner);
  if (driver_.paused()) {
    Verdict verdict;
    return CodeOf(driver_.GoOn(manner.policy, manner.patience, &verdict), verdict);
  }
  Code code = Code::kOk;
  if (failures_->CheckEnded(&code)) return code;
  if (by_priority()) code = ChooseNext(next);
  if (code != Code::kOk) return code;
  const Request& request = **next;
  // What rank 0 has chosen by priority must be driven now.
  if (!AwaitStream(request, manner, !by_priority())) {
    return failures_->CheckEnded(&code) ? std::optional<Code>(code) : std::nullopt;
  }
  if (request.stream != nullptr && !by_priority() && !queue_->IsFirst(&request)) return std::nullopt;
  if (CanDriveAgain(request)) return DriveAgain(request, manner);
  return Drive(request.arguments, request.is_fused() ? &request : nullptr, request.call, manner, request.fold);
}

void Dispatcher::Fail(const Verdict& verdict) {
  StopDevices();
  failures_->End(verdict);
  FailMessages(failures_->verdict().code);
  report_->KeepTrace();
}

void Dispatcher::StopDevices() {
  failed_();
  // Slots may go with their links.
  queues_->Drain();
  // Ranks that wait for our data must learn of the failure even when rank 0, which tells everyone, has left. Not when
  // interrupted: Setup::Close says goodbye first.
  if (setup_->control() != nullptr && setup_->control()->has_verdict()) {
    setup_->CloseLinks(setup_->control()->verdict());
  }
}

Status Dispatcher::StartProgressThread() {
  if (progress_.has_started.load(std::memory_order_relaxed)) return Status();
  const std::lock_guard<std::mutex> lock(progress_.start_mu);
  if (progress_.thread.joinable() || queue_->is_stopping()) return Status();
  const Status status = StartThread(
      "the progress thread", [this] { ProgressThread(); }, &progress_.thread);
  progress_.has_started.store(status.ok(), std::memory_order_relaxed);
  return status;
}

void Dispatcher::Hold(Request* agreement, std::span<const CallArguments> calls, std::span<Request* const> requests) {
  requests_->Hold(agreement, requests);
  CallOptions& options = agreement->options;
  options.priority = agreement->held.front()->options.priority;
  std::vector<size_t> units;
  for (Request* const each : agreement->held) {
    if (!each->is_fused()) each->call = CallOf(each->arguments, nranks(), 0);
    options.priority = std::max(options.priority, each->options.priority);
    options.timeout = std::max(options.timeout, LimitOf(each->arguments));
    units.push_back(each->members.size());
  }
  Put(Describe(calls, units, rank(), nranks()), agreement->numbers);
}

void Dispatcher::HoldNone(Request* agreement, std::span<const CallArguments> calls) const {
  agreement->held.clear();
  CallOptions& options = agreement->options;
  options.priority = std::numeric_limits<int32_t>::min();
  for (const CallArguments& each : calls) {
    if (each.kind == CollectiveKind::kNone || IsMessage(each.kind)) continue;  // Of those it holds none.
    options.priority = std::max(options.priority, each.priority());
    options.timeout = std::max(options.timeout, LimitOf(each));
  }
}

void Dispatcher::Queue(Request* request) {
  if (IsMessage(request->arguments.kind)) {
    if (!EndsAtOnce(request) && !queue_->PostMessage(request)) Drop(request, Code::kAborted);
    return;
  }
  if (!request->is_fused()) request->call = CallOf(request->arguments, nranks(), 0);
  if (!queue_->Add(request)) Drop(request, Code::kAborted);
}

void Dispatcher::Finish(Request* request, Code code) {
  requests_->Finish(request, code);
  queue_->AnnounceEnd();
}

void Dispatcher::EndQueued(Request* request, Code code) {
  if (request->arguments.kind != CollectiveKind::kAgreement || code != Code::kOk) {
    queue_->Remove(request, code);
    return Finish(request, code);
  }
  Status agreed(Code::kMismatch);
  try {
    agreed = CheckAgreement(request->numbers, nranks(), request->call.sequence);
  } catch (const std::bad_alloc&) {  // There is no memory for the words.
  }
  if (agreed.ok()) {
    queue_->Release(request);
    return Finish(request, Code::kOk);
  }
  queue_->Drop(request);
  requests_->Refuse(request, agreed);
  queue_->AnnounceEnd();
}

void Dispatcher::Drop(Request* request, Code code) {
  queue_->CountEnd(*request, code);
  Finish(request, code);
}

}  // namespace annulus
