#include "collectives/engine/engine.h"

#include "base/check.h"
#include "collectives/algorithms/shared_fold/fold_program.h"
#include "collectives/algorithms/table.h"

namespace annulus {
namespace {

bool HasType(CollectiveKind kind) { return kind != CollectiveKind::kBarrier; }

}  // namespace

Engine::Engine(int rank, const PlanSettings& settings, const Topology& topology, const Links* links, Monitor* monitor,
               SlotMemory* staging)
    : rank_(rank),
      settings_(settings),
      topology_(topology),
      choice_(settings, topology),
      links_(links),
      monitor_(monitor),
      recent_(rank, job(), links, staging) {
  MakeRunners(staging);
}

void Engine::MakeRunners(SlotMemory* staging) {
  for (const AlgorithmRow* row : AllAlgorithms()) {
    if (row->make == nullptr || row->algorithm == Algorithm::kOneHop) continue;
    runners_[static_cast<size_t>(row->algorithm)] = row->make(rank_, job(), links_, staging);
  }
  current_ = runners_[static_cast<size_t>(Algorithm::kRing)].get();
}

Runner* Engine::RunnerOf(RecentCall* call) const {
  const Algorithm algorithm = call->params.algorithm;
  return algorithm == Algorithm::kOneHop ? call->one_hop.get() : runners_[static_cast<size_t>(algorithm)].get();
}

size_t Engine::MemoryBytes(const AlgorithmJob& job) {
  const size_t one_hop = RowOf(Algorithm::kOneHop).memory_bytes(job);  // Recent calls have it.
  return sizeof(Engine) + RunnersBytes(job) - one_hop + RecentCalls::MemoryBytes(job);
}

ScheduleParams Engine::Plan(const Call& call, const Buffers& buffers) {
  const bool has_parts = IsDirect(call.kind) || HasVariableParts(call.kind);
  CallParts& parts = recent_.latest().parts;
  if (has_parts) parts.Fill(rank_, call, buffers.count, buffers.input_layout, buffers.output_layout);
  PlanInput input{call, recent_.latest().work.element_bytes, rank_, nranks(), nullptr, nullptr, 0};
  if (has_parts) input.input_parts = parts.input();
  if (has_parts) input.output_parts = parts.output();
  if (buffers.segments != nullptr) {
    input.input_parts = buffers.segments->chunks().data();
    input.tensor_count = buffers.segments->first_count();
  }
  return MakePlan(input, settings_, choice_);
}

// In place, the output's lines were just read as input. Calls that only copy do not become faster by streaming.
bool Engine::StreamsOutput(const Call& call, const Buffers& buffers, Algorithm algorithm) const {
  if (call.kind != CollectiveKind::kAllreduce || buffers.input.data == buffers.output.data) return false;
  if (!RowOf(algorithm).may_stream_output) return false;
  return 2 * call.count * recent_.latest().work.element_bytes > host_.stream_bytes;
}

void Engine::Describe(const Call& call, const Buffers& buffers, Work* work) const {
  work->call = call;
  work->input = buffers.input;
  work->output = buffers.output;
  work->type = call.type;
  work->element_bytes = HasType(call.kind) ? TypeBytes(call.type) : 1;
  work->op = IsPremulSum(call.op) ? ReduceOp::kSum : call.op;
  work->custom = Reduces(call.kind) ? buffers.custom : CustomReduction();
  if (call.op == ReduceOp::kAvg && nranks() == 1) {
    // A division by one is not a copy: like every result, its NaN is canonical and its float8 saturates.
    work->custom.scales = true;
    work->custom.factor = 1;
  }
  work->divisor = call.op == ReduceOp::kAvg && nranks() > 1 ? nranks() : 0;
  work->rank = rank_;
  work->nranks = nranks();
  work->links = links_;
  work->monitor = monitor_;
  work->segments = buffers.segments;
  work->fold = buffers.fold;
  work->lends = host_.lends && !Reduces(call.kind);
  work->short_polls = host_.short_polls;
}

void Engine::Start(const Call& call, const Buffers& buffers) {
  ANNULUS_CHECK(done());
  RecentCall& latest = recent_.Begin();
  Work& work = latest.work;
  Describe(call, buffers, &work);
  ScheduleParams& params = latest.params;
  params = Plan(call, buffers);
  // Whatever the kind: its device has got the program.
  if (buffers.fold != nullptr && buffers.fold->pieces > 0) params.algorithm = Algorithm::kSharedFold;
  work.streams_output = StreamsOutput(call, buffers, params.algorithm);
  staged_.staging = buffers.staging;
  if (buffers.staging.queue == nullptr) return StartRunner();
  current_ = RunnerOf(&latest);
  staged_.copies.Start(buffers.staging.queue, buffers.staging.inputs, StagedCopies::Direction::kFromDevice);
  phase_ = Phase::kLoads;
}

void Engine::StartRunner() {
  RecentCall& latest = recent_.latest();
  current_ = RunnerOf(&latest);
  ANNULUS_CHECK(current_ != nullptr);
  current_->Start(latest.params, &latest.work);
  phase_ = Phase::kRuns;
  // What is repeated lies in host memory, and of a staged call only the copies do.
  if (staged_.staging.queue == nullptr && current_ == latest.one_hop.get()) recent_.Keep();
}

Status Engine::Copy(bool* moved) {
  ANNULUS_RETURN_IF_ERROR(staged_.copies.Progress(moved));
  if (!staged_.copies.done()) return Status();
  if (phase_ == Phase::kLoads) {
    StartRunner();
    *moved = true;  // Nobody sleeps before the runner has posted something.
  } else {
    phase_ = Phase::kDone;
  }
  return Status();
}

void Engine::StartAgain(uint64_t sequence, const void* input, void* output) {
  RecentCall& latest = recent_.latest();
  ANNULUS_CHECK(done() && latest.repeatable != nullptr);
  Work& work = latest.work;
  work.call.sequence = sequence;
  work.input.data = static_cast<const std::byte*>(input);
  work.output.data = static_cast<std::byte*>(output);
  phase_ = Phase::kRuns;
  latest.repeatable->StartAgain();
}

bool Engine::FinishesAtOnce() {
  if (recent_.latest().repeatable->FinishesAtOnce()) phase_ = Phase::kDone;
  return done();
}

// Blames this rank: only it knows that its function failed.
static Status ReductionFailed(int rank, int32_t failure) {
  return {Code::kAborted,
          "the reduction function of rank " + std::to_string(rank) + " failed: it returned " + std::to_string(failure),
          rank, 0};
}

Status Engine::Progress(bool* moved) {
  if (IsCopying()) [[unlikely]]
    return Copy(moved);
  Status status = current_->Progress(moved);
  if (current_->declined()) [[unlikely]] {
    ScheduleParams& params = recent_.latest().params;
    params.algorithm = params.if_declined;
    StartRunner();
    *moved = true;
  }
  const bool is_staged = staged_.staging.queue != nullptr;
  if (current_->done()) phase_ = is_staged ? Phase::kStores : Phase::kDone;
  const UserReduction* const user = recent_.latest().work.custom.user;
  if (user != nullptr) [[unlikely]] {
    const int32_t failure = user->failure.load(std::memory_order_relaxed);
    if (failure != 0) return ReductionFailed(rank_, failure);
  }
  if (!status.ok() || phase_ != Phase::kStores) return status;
  staged_.copies.Start(staged_.staging.queue, staged_.staging.outputs, StagedCopies::Direction::kToDevice);
  return Copy(moved);
}

}  // namespace annulus
