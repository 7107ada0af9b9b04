#include "collectives/comm/communicator.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "collectives/calls/buffer_parts.h"
#include "collectives/calls/group.h"
#include "collectives/comm/tuner.h"
#include "collectives/control/arbiter_text.h"

namespace annulus {

Status Communicator::Create(const Options& options, const Resources& resources,
                            std::unique_ptr<Communicator>* communicator) {
  ANNULUS_RETURN_IF_ERROR(Validate(options));
  return Create(options, Membership(static_cast<int>(options.size)), resources, {}, communicator);
}

Status Communicator::Create(const Options& options, const Membership& membership, const Resources& resources,
                            const Setup::Patience& patience, std::unique_ptr<Communicator>* communicator) {
  ANNULUS_RETURN_IF_ERROR(CheckTransport(resources.transports, options.transport));
  std::unique_ptr<DomainQueues> queues;
  ANNULUS_RETURN_IF_ERROR(DomainQueues::Open(resources.domains, options.device_reduce, &queues));
  std::unique_ptr<Setup> setup;
  ANNULUS_RETURN_IF_ERROR(Setup::Establish(options, membership, resources, patience, &setup));
  std::unique_ptr<Communicator> made(new Communicator(std::move(setup), std::move(queues)));
  // A peer may have asked for more sockets than this rank did, which can take more memory than planned.
  const size_t needed = made->fixed_memory_.total();
  if (options.memory_bytes > 0 && needed > static_cast<size_t>(options.memory_bytes)) {
    return Status::Invalid("memory_bytes (ANNULUS_MEMORY_BYTES) is " + std::to_string(options.memory_bytes) +
                           ", but the links that the ranks agreed on take " + std::to_string(needed) + " bytes");
  }
  if (options.tuning == Tuning::kMeasured) ANNULUS_RETURN_IF_ERROR(made->Tune(options.tuning_file, patience.give_up));
  *communicator = std::move(made);
  return Status();
}

Communicator::Communicator(std::unique_ptr<Setup> setup, std::unique_ptr<DomainQueues> queues)
    : setup_(std::move(setup)),
      queues_(std::move(queues)),
      queue_({rank(), nranks(), options().priorities != 0, setup_->monitor(), [this] { setup_->reactor()->Wake(); }}),
      report_(setup_.get(), &queue_),
      failures_(rank(), &report_),
      requests_({resources().requests, this, &callbacks_, rank(), nranks(), queue_.mutex()}),
      streams_(rank(), nranks()),
      dispatcher_({setup_.get(), &queue_, &failures_, &report_, &requests_, queues_.get(),
                   [this] { ReleaseOperations(); }, [this] { streams_.OpenAll(); }}),
      checks_calls_(options().check_calls && nranks() > 1),
      fixed_memory_(FixedMemory()) {
  queues_->WatchIn(setup_->reactor());
  OpenStreams();
  setup_->CallOnVerdict([this] { streams_.OpenAll(); });
}

Communicator::~Communicator() {
  // Callbacks still may call; what they start is refused.
  failures_.Close();
  streams_.OpenAll();
  streams_.StopReplays();
  // What they are told of may be written to only when no device and no peer uses it any more.
  callbacks_.Hold();
  dispatcher_.Stop();
  callbacks_.AwaitBegun();
  dispatcher_.Close();
  callbacks_.Finish();
}

Status Communicator::Tune(const std::string& file, const Setup::GiveUp& give_up) {
  TuningJob job;
  job.rank = rank();
  job.plan = plan();
  job.topology = topology();
  const TransportSettings settings = SettingsOf(options());
  for (const TransportInfo* transport : transports()) {
    for (const char* name : transport->cost_settings) {
      job.transport_settings.emplace_back(name, settings.Number(name));
    }
  }
  job.run = [this](const CallArguments& arguments) { return RunInWords(arguments); };
  job.choose = [this](const AlgorithmChoice& choice) { dispatcher_.set_choice(choice); };
  job.give_up = give_up;
  const Nanoseconds usual = dispatcher_.call_timeout();
  dispatcher_.set_call_timeout(std::min(usual, options().connect_timeout_ms * kMillisecond));
  const Status status = Tuner(std::move(job), choice()).Tune(file, &choice_source_);
  dispatcher_.set_call_timeout(usual);
  return status;
}

Status Communicator::Complete(CallArguments* arguments, std::shared_ptr<const UserReduction>* keep) {
  if (arguments->created_op != 0) {
    std::lock_guard<std::mutex> lock(operations_mu_);
    Operations::Operation operation;
    ANNULUS_RETURN_IF_ERROR(operations_.Find(arguments->created_op, &operation));
    arguments->op = operation.op;
    arguments->custom = operation.custom;
    *keep = operation.keep;
  }
  ANNULUS_RETURN_IF_ERROR(CheckArguments(*arguments, rank(), nranks()));
  if (arguments->priority() != 0 && options().priorities == 0) {
    return Status::Invalid("priority is " + std::to_string(arguments->priority()) +
                           ", but priorities are off; set priorities (ANNULUS_PRIORITIES) to 1 on all ranks");
  }
  ForgetUnused(arguments, rank(), nranks());
  if (!queues_->host_only()) ANNULUS_RETURN_IF_ERROR(PrepareDevices(arguments));
  const bool needs_mesh = IsDirect(arguments->kind) || IsMessage(arguments->kind);
  if (!needs_mesh || HasMesh(nranks(), setup_->plan())) return Status();
  return {Code::kUnsupported, std::string(KindName(arguments->kind)) +
                                  " needs a link between any two ranks; there are " + std::to_string(nranks()) +
                                  ", and ANNULUS_MESH_RANKS is " + std::to_string(setup_->plan().mesh_ranks)};
}

Status Communicator::PrepareBuffers(CallArguments* a) {
  const auto prepare = [this, a](const char* name, const void* buffer, size_t bytes, DomainQueue** queue) {
    const Status status = queues_->Prepare(buffer, bytes, a->options == nullptr || !a->options->on_stream, queue);
    return status.ok() ? status : Status(status.code(), std::string(name) + ": " + status.message());
  };
  const size_t send_bytes = SendEnd(*a, rank(), nranks());
  const size_t recv_bytes = RecvEnd(*a, rank(), nranks());
  ANNULUS_RETURN_IF_ERROR(prepare("sendbuf", a->sendbuf, send_bytes, &a->send_queue));
  if (a->recvbuf == a->sendbuf && recv_bytes <= send_bytes) {
    a->recv_queue = a->send_queue;  // A question less for the device's driver.
    return Status();
  }
  ANNULUS_RETURN_IF_ERROR(prepare("recvbuf", a->recvbuf, recv_bytes, &a->recv_queue));
  if (QueueFor(a->recv_queue, a->send_queue) == QueueFor(a->send_queue, a->recv_queue)) return Status();
  return {Code::kUnsupported, "sendbuf and recvbuf lie in the memories of two devices"};
}

Status Communicator::Refuse(const Status& status) {
  Code code = Code::kOk;
  return failures_.CheckEnded(&code) ? Status(code) : status;
}

Status Communicator::CheckMayStart() {
  if (dispatcher_.IsInsideReduction())
    return Status::Invalid("a reduction function used the communicator that called it");
  Code code = Code::kOk;
  return failures_.CheckEnded(&code) ? Status(code) : Status();
}

Status Communicator::RunNow(const CallArguments& given) {
  ANNULUS_RETURN_IF_ERROR(CheckMayStart());  // Before Complete, which may wait for a GPU's driver.
  CallArguments arguments = given;
  std::shared_ptr<const UserReduction> keep;
  const Status valid = Complete(&arguments, &keep);
  if (!valid.ok()) return Refuse(valid);
  const Status outcome = dispatcher_.Run(arguments);
  if (keep != nullptr) {
    keep.reset();
    ReleaseOperations();
  }
  return outcome;
}

Status Communicator::RunInWords(const CallArguments& given) {
  const std::optional<Code> again = dispatcher_.RunAgain(given);
  Status status = again ? Status(*again) : RunNow(given);
  if (status.ok() || !status.message().empty()) return status;
  const Verdict& verdict = failures_.verdict();
  return {status.code(), verdict.message, verdict.rank, verdict.os_errno};
}

Status Communicator::SubmitNow(std::span<const CallArguments> given, const Give& give, size_t* refused,
                               Request* agreement) {
  if (given.size() != 1) return SubmitGroup(given, give, refused, agreement);
  *refused = 0;
  ANNULUS_RETURN_IF_ERROR(CheckMayStart());
  CallArguments call = given[0];
  std::shared_ptr<const UserReduction> keep;
  const Status valid = Complete(&call, &keep);
  if (!valid.ok()) return Refuse(valid);
  ANNULUS_RETURN_IF_ERROR(StartThreads({&call, 1}));
  StreamOrder::Call in_stream(&streams_);
  const Status staged = in_stream.Stage({&call, 1}, agreement != nullptr, PlaceDeadline({&call, 1}));
  if (!staged.ok()) return Refuse(staged);
  if (in_stream.is_captured()) return Capture({&call, 1}, {&keep, 1}, give, agreement, &in_stream);
  const Status apart = CheckBesideGraphs({&call, 1}, agreement != nullptr);
  if (!apart.ok()) return Refuse(apart);
  Request* made = nullptr;
  ANNULUS_RETURN_IF_ERROR(requests_.MakeWithin(BudgetFor({&call, 1}), {&call, 1}, give == nullptr, &made));
  made->keep = std::move(keep);
  Requests::Unqueued unqueued(&requests_, {&made, 1});
  dispatcher_.NoteLabels({&made, 1});
  if (agreement != nullptr) dispatcher_.Hold(agreement, {&call, 1}, {&made, 1});
  ANNULUS_RETURN_IF_ERROR(in_stream.Enqueue({&made, 1}, {}));
  unqueued.Keep();
  if (give != nullptr) give(made->handle);
  QueueInStream({&made, 1}, agreement, &in_stream);
  return Status();
}

Status Communicator::SubmitGroup(std::span<const CallArguments> given, const Give& give, size_t* refused,
                                 Request* agreement) {
  *refused = given.size();
  ANNULUS_RETURN_IF_ERROR(CheckMayStart());
  std::vector<CallArguments> calls(given.begin(), given.end());
  std::vector<std::shared_ptr<const UserReduction>> keeps(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const Status valid = Complete(&calls[i], &keeps[i]);
    if (valid.ok()) continue;
    *refused = i;
    return Refuse({valid.code(), "call " + std::to_string(i) + " of the group: " + valid.message()});
  }
  ANNULUS_RETURN_IF_ERROR(StartThreads(calls));
  StreamOrder::Call in_stream(&streams_);
  const Status staged = in_stream.Stage(calls, agreement != nullptr, PlaceDeadline(calls));
  if (!staged.ok()) return Refuse(staged);
  if (in_stream.is_captured()) return Capture(calls, keeps, give, agreement, &in_stream);
  const Status apart = CheckBesideGraphs(calls, agreement != nullptr);
  if (!apart.ok()) return Refuse(apart);
  std::vector<Request*> made(calls.size());
  ANNULUS_RETURN_IF_ERROR(requests_.MakeWithin(BudgetFor(calls), calls, true, made.data()));
  for (size_t i = 0; i < made.size(); ++i) made[i]->keep = std::move(keeps[i]);
  // Whatever may fail comes before the first call is queued.
  Requests::Unqueued unqueued(&requests_, made);
  const std::vector<Request*> queued = Arrange(made, &unqueued);
  const Request* const group = give != nullptr ? unqueued.Group(made) : nullptr;
  dispatcher_.NoteLabels(queued);
  if (agreement != nullptr) dispatcher_.Hold(agreement, calls, queued);
  const Status enqueued = in_stream.Enqueue(made, queued);
  if (!enqueued.ok()) return Refuse(enqueued);
  unqueued.Keep();
  if (group != nullptr) give(group->handle);
  QueueInStream(queued, agreement, &in_stream);
  return Status();
}

void Communicator::QueueAll(std::span<Request* const> requests, Request* agreement) {
  for (Request* const each : requests) {
    if (agreement == nullptr || IsMessage(each->arguments.kind)) dispatcher_.Queue(each);
  }
  if (agreement != nullptr) dispatcher_.Queue(agreement);
}

Status Communicator::StartThreads(std::span<const CallArguments> calls) {
  const auto has_callback = [](const CallArguments& call) { return call.done() != nullptr; };
  if (std::ranges::any_of(calls, has_callback)) ANNULUS_RETURN_IF_ERROR(callbacks_.Start());
  return dispatcher_.StartProgressThread();
}

std::vector<Request*> Communicator::Arrange(const std::vector<Request*>& made, Requests::Unqueued* unqueued) {
  const auto has_own_order = [this](const CallArguments& a) {
    return HasOwnOrderInGroups(choice(), a.op, a.count * TypeBytes(a.type));
  };
  std::vector<Request*> queued;
  queued.reserve(made.size());
  for (const std::vector<Request*>& bundle : Bundles(made, has_own_order)) {
    if (bundle.size() > 1 && AreIndependent(bundle)) {
      queued.push_back(unqueued->Fuse(bundle));
      continue;
    }
    // A group's allreduces have the same order of addition whether they can be combined or not.
    for (Request* const each : bundle) {
      const CallArguments& a = each->arguments;
      const bool has_other_order =
          a.kind == CollectiveKind::kAllreduce && HasOwnOrderAlone(choice(), a.op, a.count * TypeBytes(a.type));
      queued.push_back(has_other_order ? unqueued->Fuse({each}) : each);
    }
  }
  return queued;
}

Status Communicator::Wait(RequestHandle handle, int64_t timeout_ms, FailedCall* failed) {
  return requests_.Wait(handle, timeout_ms, AwaitEnd(), failed);
}

Status Communicator::Free(RequestHandle handle) { return requests_.Free(handle, AwaitEnd()); }

Requests::AwaitEnd Communicator::AwaitEnd() {
  if (dispatcher_.IsInsideReduction()) return nullptr;
  return [this](Request* request, Deadline until) { dispatcher_.Help(request, until); };
}

void Communicator::ReleaseOperations() {
  if (!operations_.has_retired()) return;
  std::vector<std::shared_ptr<Operations::User>> unused;
  {
    std::lock_guard<std::mutex> lock(operations_mu_);
    unused = operations_.TakeUnused();
  }
  for (const auto& user : unused) {
    if (user->reduction.release != nullptr) user->reduction.release(user->reduction.context);
  }
}

const Verdict* Communicator::verdict() {
  Code code = Code::kOk;
  return failures_.CheckEnded(&code) ? &failures_.verdict() : nullptr;
}

void Communicator::Abort(const std::string& reason) {
  if (setup_->control() != nullptr) {
    setup_->control()->Abort(reason);
    return;
  }
  failures_.End(AbortVerdict(rank(), reason));  // First: what is interrupted has no other words for it.
  dispatcher_.Interrupt();
  streams_.OpenAll();
}

std::optional<Verdict> Communicator::Parted(const std::vector<int>& ranks, bool expected) {
  std::optional<Verdict> reason;
  if (setup_->control() != nullptr) reason = setup_->control()->Parted(ranks, expected);
  Code code = Code::kOk;
  if (!failures_.CheckEnded(&code) || reason) return reason;
  // Without control the rank is alone, and only it can have ended the communicator.
  return setup_->control() == nullptr ? std::optional<Verdict>(failures_.verdict()) : std::nullopt;
}

Totals Communicator::ReadTotals() const { return setup_->monitor()->Read(Now()); }

PeerTotals Communicator::ReadPeer(int peer) const { return setup_->monitor()->Read(peer, Now()); }

std::string Communicator::DescribeLink(int peer) const {
  const Endpoint* const endpoint = setup_->links().At(peer, 0);
  return endpoint != nullptr ? endpoint->Describe() : "";
}

std::optional<bool> Communicator::StreamsSlots(int peer) const {
  Endpoint* const endpoint = setup_->links().At(peer, 0);
  const InPlace* const in_place = endpoint != nullptr ? endpoint->shortcuts().in_place : nullptr;
  if (in_place == nullptr) return std::nullopt;
  return in_place->StreamsSlots();
}

uint64_t Communicator::Retransmits(int peer) const {
  uint64_t retransmits = 0;
  for (const auto& endpoint : setup_->links().all()) {
    if (endpoint->peer() == peer) retransmits += endpoint->stats().retransmits;
  }
  return retransmits;
}

TransportTotals Communicator::ReadTransport(const TransportInfo& transport) const {
  TransportTotals totals;
  const auto is_its = [&](const PeerTotals& peer) { return std::string_view(peer.transport) == transport.name; };
  for (int peer = 0; peer < nranks(); ++peer) {
    const PeerTotals passed = ReadPeer(peer);
    if (!is_its(passed)) continue;
    totals.sent_bytes += passed.sent_bytes;
    totals.received_bytes += passed.received_bytes;
  }
  for (const auto& endpoint : setup_->links().all()) {
    if (!is_its(ReadPeer(endpoint->peer()))) continue;
    const EndpointStats stats = endpoint->stats();
    totals.retransmits += stats.retransmits;
    totals.reconnects += stats.reconnects;
    totals.bytes_sent_again += stats.bytes_sent_again;
    totals.read_bytes += stats.read_bytes;
    totals.landed_bytes += stats.landed_bytes;
  }
  return totals;
}

MemoryUse Communicator::Memory() const {
  MemoryUse use = fixed_memory_;
  for (const auto& endpoint : setup_->links().all()) use.peers_mapped += endpoint->stats().memory.mapped;
  use.work += dispatcher_.MessagesBytes();
  use.staging += dispatcher_.StagingBytes() + streams_.MemoryBytes();
  use.requests = requests_.MemoryBytes();
  use.gpu = streams_.GpuBytes();
  return use;
}

MemoryUse Communicator::FixedMemory() const {
  MemoryUse use;
  for (const auto& endpoint : setup_->links().all()) {
    const LinkMemory link = endpoint->stats().memory;
    use.staging += link.staging;
    use.links += link.bookkeeping;
  }
  use.work = sizeof(Communicator) - sizeof(Engine) + dispatcher_.EngineBytes();
  return use;
}

RequestBudget Communicator::BudgetFor(std::span<const CallArguments> calls) const {
  RequestBudget budget;
  budget.most = static_cast<size_t>(options().memory_bytes);
  if (budget.most == 0) return budget;
  const size_t ranks = static_cast<size_t>(nranks());
  budget.held_elsewhere =
      fixed_memory_.total() + dispatcher_.MessagesBytes() + dispatcher_.StagingBytes() + streams_.MemoryBytes();
  if (nranks() > 1 && HasMesh(nranks(), setup_->plan())) budget.held_elsewhere += dispatcher_.RoomToHoldBytes();
  budget.wanted = calls.size() * sizeof(Request);
  for (const CallArguments& call : calls) {
    if (HasVariableParts(call.kind)) budget.wanted += 4 * ranks * sizeof(size_t);
  }
  // If fused, two or more calls of a group share a request and its chunks; the group has a request as well.
  const size_t fused = ranks * (Segments::kSegmentBytes + sizeof(Part) / 2) + Segments::kSegmentBytes / 2 +
                       sizeof(Request*) + sizeof(Request) / 2;
  if (calls.size() > 1) budget.wanted += calls.size() * fused + sizeof(Request);
  return budget;
}

}  // namespace annulus
