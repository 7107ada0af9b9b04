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
      parts_(topology.nranks) {
  MakeRunners(staging);
}

void Engine::MakeRunners(SlotMemory* staging) {
  for (const AlgorithmRow* row : AllAlgorithms()) {
    if (row->make != nullptr) runners_[static_cast<size_t>(row->algorithm)] = row->make(rank_, job(), links_, staging);
  }
  current_ = runners_[static_cast<size_t>(Algorithm::kRing)].get();
}

size_t Engine::MemoryBytes() const { return sizeof(Engine) + RunnersBytes(job()) + CallParts::MemoryBytes(nranks()); }

ScheduleParams Engine::Plan(const Call& call, const Buffers& buffers) {
  const bool has_parts = IsDirect(call.kind) || HasVariableParts(call.kind);
  if (has_parts) parts_.Fill(rank_, call, buffers.count, buffers.input_layout, buffers.output_layout);
  PlanInput input{call, work_.element_bytes, rank_, nranks(), nullptr, nullptr, 0};
  if (has_parts) input.input_parts = parts_.input();
  if (has_parts) input.output_parts = parts_.output();
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
  return 2 * call.count * work_.element_bytes > host_.stream_bytes;
}

void Engine::Start(const Call& call, const Buffers& buffers) {
  ANNULUS_CHECK(done());
  work_.call = call;
  work_.input = buffers.input;
  work_.output = buffers.output;
  work_.type = call.type;
  work_.element_bytes = HasType(call.kind) ? TypeBytes(call.type) : 1;
  work_.op = IsPremulSum(call.op) ? ReduceOp::kSum : call.op;
  work_.custom = Reduces(call.kind) ? buffers.custom : CustomReduction();
  if (call.op == ReduceOp::kAvg && nranks() == 1) {
    // A division by one is not a copy: like every result, its NaN is canonical and its float8 saturates.
    work_.custom.scales = true;
    work_.custom.factor = 1;
  }
  work_.divisor = call.op == ReduceOp::kAvg && nranks() > 1 ? nranks() : 0;
  work_.rank = rank_;
  work_.nranks = nranks();
  work_.links = links_;
  work_.monitor = monitor_;
  work_.segments = buffers.segments;
  work_.fold = buffers.fold;
  params_ = Plan(call, buffers);
  // Whatever the kind: its device has got the program.
  if (buffers.fold != nullptr && buffers.fold->pieces > 0) params_.algorithm = Algorithm::kSharedFold;
  work_.streams_output = StreamsOutput(call, buffers, params_.algorithm);
  work_.lends = host_.lends && !Reduces(call.kind);
  work_.short_polls = host_.short_polls;
  SetRepeatable(nullptr);
  staged_.staging = buffers.staging;
  if (buffers.staging.queue == nullptr) return StartRunner();
  current_ = runners_[static_cast<size_t>(params_.algorithm)].get();
  staged_.copies.Start(buffers.staging.queue, buffers.staging.inputs, StagedCopies::Direction::kFromDevice);
  phase_ = Phase::kLoads;
}

void Engine::StartRunner() {
  current_ = runners_[static_cast<size_t>(params_.algorithm)].get();
  ANNULUS_CHECK(current_ != nullptr);
  current_->Start(params_, &work_);
  phase_ = Phase::kRuns;
  // What is repeated lies in host memory, and of a staged call only the copies do.
  if (staged_.staging.queue == nullptr) SetRepeatable(current_->repeatable());
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
  ANNULUS_CHECK(done() && repeat_.runner != nullptr);
  work_.call.sequence = sequence;
  work_.input.data = static_cast<const std::byte*>(input);
  work_.output.data = static_cast<std::byte*>(output);
  phase_ = Phase::kRuns;
  repeat_.runner->StartAgain();
}

bool Engine::FinishesAtOnce() {
  if (repeat_.runner->FinishesAtOnce()) phase_ = Phase::kDone;
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
    params_.algorithm = params_.if_declined;
    StartRunner();
    *moved = true;
  }
  const bool is_staged = staged_.staging.queue != nullptr;
  if (current_->done()) phase_ = is_staged ? Phase::kStores : Phase::kDone;
  if (work_.custom.user != nullptr) [[unlikely]] {
    const int32_t failure = work_.custom.user->failure.load(std::memory_order_relaxed);
    if (failure != 0) return ReductionFailed(rank_, failure);
  }
  if (!status.ok() || phase_ != Phase::kStores) return status;
  staged_.copies.Start(staged_.staging.queue, staged_.staging.outputs, StagedCopies::Direction::kToDevice);
  return Copy(moved);
}

}  // namespace annulus
