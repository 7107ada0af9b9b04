#include "tests/collectives/harness/sim_job.h"

#include "base/check.h"
#include "collectives/algorithms/table.h"
#include "collectives/control/arbiter_text.h"
#include "collectives/control/control.h"

namespace annulus {
namespace {

constexpr std::byte kUntouched{0xcd};

}  // namespace

static SimJobOptions WithRanks(SimJobOptions options) {
  options.topology.nranks = options.world.nranks;
  return options;
}

SimJob::SimJob(const SimJobOptions& options)
    : options_(WithRanks(options)),
      world_(options.world),
      arbiter_(options.world.nranks),
      ranks_(options.world.nranks) {
  const int n = options.world.nranks;
  const uint64_t seed = options.input_seed != 0 ? options.input_seed : options.world.seed;
  for (int r = 0; r < n; ++r) {
    inputs_.push_back(options.parts ? options.parts->Input(r)
                                    : MakeInput(options.call.type, InputElements(options.call, n), r, seed));
  }
  for (int r = 0; r < n; ++r) MakeRank(r);
  Connect();
}

SimJob::~SimJob() {
  for (Rank& rank : ranks_) EndWork(&rank);
}

void SimJob::MakeRank(int r) {
  const int n = options_.world.nranks;
  Rank& rank = ranks_[r];
  rank.links = std::make_unique<Links>(n, options_.plan.channels + 1);
  for (const NeededLink& link : LinksNeeded(r, {options_.plan, options_.topology})) {
    rank.links->Add(link.peer, link.channel, world_.MakeEndpoint(r, link.peer, link.channel));
  }
  rank.monitor = std::make_unique<Monitor>(n);
  MakeBuffers(r);
  rank.engine = std::make_unique<Engine>(r, options_.plan, options_.topology, rank.links.get(), rank.monitor.get(),
                                         rank.device.get());
  rank.engine->set_stream_bytes(options_.stream_bytes);
  CustomReduction custom;
  custom.scales = !options_.created.factors.empty();
  if (custom.scales) custom.factor = options_.created.factors[r];
  created_.function = options_.created.function;
  created_.context = options_.created.context;
  if (created_.function != nullptr) custom.user = &created_;
  const Buffer output(rank.output, rank.queue.get());
  Buffers buffers{{rank.input, rank.queue.get()}, output, options_.call.count, {}, {}, nullptr, custom};
  if (!options_.tensors.empty()) {
    std::vector<Tensor> tensors;
    size_t begin = 0;
    for (size_t count : options_.tensors) {
      DomainQueue* const queue = rank.queue.get();
      tensors.push_back({{rank.input + begin, queue}, {rank.output + begin, queue}, count});
      begin += count * TypeBytes(options_.call.type);
    }
    rank.segments.Assign(tensors, TypeBytes(options_.call.type), n);
    buffers.segments = &rank.segments;
  }
  PartsSide send;
  PartsSide recv;
  if (options_.parts) {
    send = options_.parts->Send(r);
    recv = options_.parts->Recv(r);
    buffers.count = options_.parts->Own(r);
    buffers.input_layout = {options_.parts->CountsOf(send), options_.parts->OffsetsOf(send)};
    buffers.output_layout = {options_.parts->CountsOf(recv), options_.parts->OffsetsOf(recv)};
  }
  rank.engine->Start(EngineCall(), buffers);
  // Time must reach the deadline, and the end of the wait for a verdict, even when nothing else happens.
  world_.clock().At(options_.timeout + 1, [] {});
  world_.clock().At(options_.timeout + Control::kVerdictGrace + 2, [] {});
}

bool SimJob::InPlace(int rank) const {
  const CollectiveKind kind = options_.call.kind;
  const bool at_root = rank == options_.call.root;
  return options_.in_place && !IsAlltoall(kind) && (at_root || !(IsGather(kind) || IsScatter(kind)));
}

size_t SimJob::OutputBytes(int rank) const {
  const size_t elements =
      options_.parts ? options_.parts->Recv(rank).elements : OutputElements(options_.call, options_.world.nranks);
  return elements * TypeBytes(options_.call.type);
}

// Where in-place operation has the input within the output,
size_t SimJob::InputOffset(int rank) const {
  const CollectiveKind kind = options_.call.kind;
  if (!InPlace(rank) || !(IsAllgather(kind) || IsGather(kind))) return 0;
  return options_.parts ? options_.parts->Recv(rank).begin(rank) * TypeBytes(options_.call.type)
                        : inputs_[rank].size() * rank;
}

// or the output within the input.
size_t SimJob::OutputOffset(int rank) const {
  const CollectiveKind kind = options_.call.kind;
  if (!InPlace(rank) || !(IsReduceScatter(kind) || IsScatter(kind))) return 0;
  const size_t element = options_.parts ? options_.parts->Send(rank).begin(rank) : options_.call.count * rank;
  return element * TypeBytes(options_.call.type);
}

void SimJob::MakeBuffers(int r) {
  Rank& rank = ranks_[r];
  const size_t input_bytes = inputs_[r].size();
  const size_t in_place_input = InputOffset(r);
  const size_t whole = std::max(input_bytes, OutputBytes(r));
  if (options_.on_device) {
    rank.device = std::make_unique<SimDevice>(SimDeviceOptions{options_.world.seed + r, 16, &world_.clock()});
    ANNULUS_CHECK(rank.device->OpenQueue(ReduceOn::kAuto, &rank.queue).ok());
    rank.output = rank.device->Allocate(std::max<size_t>(whole, 1));
    rank.input = InPlace(r) ? rank.output + in_place_input : rank.device->Allocate(std::max<size_t>(input_bytes, 1));
    if (input_bytes > 0) rank.device->Write(rank.input, inputs_[r].data(), input_bytes);
  } else {
    rank.host_output.assign(whole, kUntouched);
    rank.host_input = inputs_[r];
    rank.output = rank.host_output.data();
    rank.input = rank.host_input.data();
    if (InPlace(r)) {
      rank.input = rank.output + in_place_input;
      std::copy(inputs_[r].begin(), inputs_[r].end(), rank.input);
    }
  }
  rank.output += OutputOffset(r);
}

// options_.call is an allreduce of all elements; a group says so, and has their division into tensors.
Call SimJob::EngineCall() const {
  Call call = options_.call;
  if (!options_.tensors.empty()) call.kind = CollectiveKind::kAllreduceGroup;
  return call;
}

Bytes SimJob::ExpectedOf(const Call& call, const std::vector<Bytes>& inputs, int rank) const {
  if (IsAllreduce(call.kind) &&
      HasOwnOrderInGroups(ranks_[rank].engine->choice(), call.op, call.count * TypeBytes(call.type)))
    return ExpectedInLevels(call, inputs, options_.topology.grid, options_.created);
  return ExpectedOutput(call, inputs, rank, options_.created);
}

Bytes SimJob::Expected(int rank) const {
  if (options_.parts) {
    if (!options_.parts->Recv(rank).used) return {};
    Bytes expected(OutputBytes(rank), options_.on_device ? std::byte{0} : kUntouched);  // Gaps stay as they were.
    options_.parts->Overlay(rank, expected.data());
    return expected;
  }
  if (options_.tensors.empty()) {
    if (options_.call.kind == CollectiveKind::kAllreduce) {
      const PlanInput input{
          options_.call, TypeBytes(options_.call.type), rank, options_.world.nranks, nullptr, nullptr, 0};
      if (MakePlan(input, options_.plan, options_.topology).algorithm == Algorithm::kTree)
        return ExpectedTreeOutput(options_.call, inputs_, options_.created);
    }
    return ExpectedOf(options_.call, inputs_, rank);
  }
  Bytes all;
  for (size_t count : options_.tensors) {
    Call one = options_.call;
    one.count = count;
    std::vector<Bytes> inputs;
    for (const Bytes& whole : inputs_) {
      const auto begin = whole.begin() + static_cast<ptrdiff_t>(all.size());
      inputs.emplace_back(begin, begin + static_cast<ptrdiff_t>(count * TypeBytes(one.type)));
    }
    const Bytes part = ExpectedOf(one, inputs, rank);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

Bytes SimJob::Output(int r) const {
  const Rank& rank = ranks_[r];
  Bytes output(OutputBytes(r));
  if (options_.on_device) {
    rank.device->Read(output.data(), rank.output, output.size());
  } else {
    std::copy(rank.output, rank.output + output.size(), output.begin());
  }
  return output;
}

void SimJob::Tell(int from, int to, std::function<void()> act) {
  messages_.push_back(std::move(act));
  world_.Send(from, to, std::to_string(messages_.size() - 1));
}

void SimJob::Connect() {
  for (int r = 0; r < options_.world.nranks; ++r) {
    SimControl control;
    control.message = [this, r](int from, std::string number) {
      if (from == 0) Hear(r);
      messages_[std::stoul(number)]();
    };
    control.closed = [this, r](int dead) {
      if (r == 0) arbiter_.Died(dead);
      if (r != 0 && dead == 0) Settle(r, DeathVerdict(0));
    };
    world_.SetControl(r, std::move(control));
  }
}

// A sign of life of rank 0; then time must reach the end of the wait for the next one.
void SimJob::Hear(int r) {
  ranks_[r].heard_at = world_.now();
  world_.clock().At(world_.now() + Control::kVerdictGrace + 1, [] {});
}

Activity SimJob::ActivityOf(int r) const {
  Activity activity;
  activity.sequence = options_.call.sequence;
  activity.recent = {EngineCall()};
  activity.inside = ranks_[r].state != State::kFinished;
  return activity;
}

void SimJob::Settle(int r, const Verdict& verdict) {
  Rank& rank = ranks_[r];
  if (rank.state == State::kFinished || rank.state == State::kFailed) return;
  rank.state = State::kFailed;
  rank.verdict = verdict;
  rank.ended_at = world_.now();
  EndWork(&rank);
}

// As Control::Report without a word of rank 0, which adopts it when it runs again.
void SimJob::SettleAlone(int r) {
  const Verdict alone = SilenceVerdict({0}, Status::kNoRank);
  Settle(r, alone);
  Tell(r, 0, [this, r, alone] { arbiter_.Settled(r, alone, world_.now()); });
}

// As a communicator that fails or ends.
void SimJob::EndWork(Rank* rank) {
  if (rank->queue != nullptr) rank->queue->Drain();
  rank->links->Close();
}

bool SimJob::Drive(int r) {
  Rank& rank = ranks_[r];
  if (!world_.runs(r) || rank.state == State::kFinished || rank.state == State::kFailed) return false;
  if (rank.state == State::kReported) {
    if (world_.now() > Control::VerdictDue(rank.reported_at, rank.heard_at, options_.timeout)) SettleAlone(r);
    return false;
  }
  bool moved = false;
  // Now and then links move that the call does not use, as those do that a driver tends. It does not look at errors.
  if (++rank.drives % 5 == 0) {
    for (const auto& link : rank.links->all()) static_cast<void>(link->Progress(&moved));
  }
  Status status = rank.engine->Progress(&moved);
  if (status.ok() && rank.engine->done()) {
    rank.state = State::kFinished;
    rank.ended_at = world_.now();
    return true;
  }
  if (status.ok() && world_.now() > options_.timeout) status = Status(Code::kTimeout, "the deadline passed");
  if (!status.ok()) {
    rank.state = State::kReported;
    rank.reported_at = world_.now();
    Hear(r);
    Tell(r, 0, [this, r, status] { arbiter_.Report(r, status, EngineCall(), world_.now()); });
    return true;
  }
  return moved;
}

void SimJob::ServeArbiter() {
  if (!world_.runs(0)) return;
  if (arbiter_.deadline() != kNoDeadline) {
    if (world_.now() >= arbiter_.deadline()) {
      arbiter_.Tick(world_.now());
    } else if (arbiter_.deadline() != ticking_at_) {
      ticking_at_ = arbiter_.deadline();
      world_.clock().At(ticking_at_, [] {});
    }
  }
  if (arbiter_.TakeQuery()) {
    for (int r = 0; r < options_.world.nranks; ++r) {
      Tell(0, r, [this, r] {
        Tell(r, 0, [this, r, activity = ActivityOf(r)] { arbiter_.Answer(r, activity, world_.now()); });
      });
    }
  }
  if (arbiter_.verdict() && !told_verdict_) {
    told_verdict_ = true;
    for (int r = 0; r < options_.world.nranks; ++r) Tell(0, r, [this, r] { Settle(r, *arbiter_.verdict()); });
  }
}

bool SimJob::Over() const {
  for (int r = 0; r < options_.world.nranks; ++r) {
    const State state = ranks_[r].state;
    const bool counts = options_.awaits_stopped ? !world_.dead(r) : world_.runs(r);
    if (counts && state != State::kFinished && state != State::kFailed) return false;
  }
  return true;
}

bool SimJob::Run() {
  do {
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < options_.world.nranks; ++r) moved |= Drive(r);
      ServeArbiter();
    }
    if (Over()) return true;
  } while (world_.AdvanceToNextEvent());
  return Over();
}

}  // namespace annulus
