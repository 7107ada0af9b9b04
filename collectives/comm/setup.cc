#include "collectives/comm/setup.h"

#include <algorithm>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/identity.h"
#include "base/library.h"
#include "base/log.h"
#include "collectives/algorithms/table.h"
#include "collectives/engine/memory_budget.h"
#include "collectives/membership/core_set.h"
#include "collectives/membership/local_host.h"
#include "collectives/observe/verdict_note.h"
#include "collectives/reduce/memory_domains.h"
#include "transport/memory/device_exports.h"
#include "transport/pulse.h"
#include "transport/security/door.h"

namespace annulus {

PlanSettings PlanSettingsOf(const Options& options) {
  PlanSettings plan;
  plan.slice_bytes = options.slice_bytes;
  plan.small_bytes = options.small_bytes;
  plan.channels = static_cast<int>(options.channels);
  plan.algorithm = options.algorithm;
  if (options.mesh_ranks > 0) plan.mesh_ranks = static_cast<int>(options.mesh_ranks);
  return plan;
}

namespace {

// Runs a step of joining the job. An error about descriptors names this rank and its limit, whatever lacked them; asio,
// which needs some for itself, throws then.
template <class Step>
Status NamingThisRank(int rank, const Step& step) {
  Status status;
  try {
    status = step();
  } catch (const std::system_error& error) {
    status = {Code::kSystem, error.what(), -1, error.code().value()};
  }
  return NamingWhoIsOut(rank, "joining its job", std::move(status));
}

}  // namespace

Setup::Setup(const Options& options, const Membership& membership, const Resources& resources)
    : options_(options),
      resources_(resources),
      membership_(membership),
      plan_(PlanSettingsOf(options)),
      telemetry_(nranks()),
      transports_(resources.transports, FilterOf(resources.transports, options)),
      links_(std::make_unique<Links>(nranks(), plan_.channels + 1)) {}

Setup::~Setup() { Close(); }

Status Setup::Establish(const Options& options, const Membership& membership, const Resources& resources,
                        const Patience& patience, std::unique_ptr<Setup>* setup) {
  Log(LogLevel::kInfo, static_cast<int>(options.rank), "Annulus %s; %s", LibraryText(ThisLibrary()).c_str(),
      JobRunText(JobRunOf(options)).c_str());
  WarnOfUnknownVariables(static_cast<int>(options.rank), static_cast<int>(options.local_rank));
  const std::string source = options.launcher.empty() ? "the configuration" : options.launcher;
  Log(LogLevel::kInfo, static_cast<int>(options.rank), "rank %lld of %d, from %s", static_cast<long long>(options.rank),
      membership.nranks(), source.c_str());
  if (!options.run_doubt.empty() && membership.nranks() > 1 && options.rank == 0) {
    Log(LogLevel::kWarn, 0,
        "ranks left over from an earlier start of this job may be taken for its own (%s): give ANNULUS_RUN_ID a new "
        "value for each start",
        options.run_doubt.c_str());
  }
  const Deadline deadline = std::min(patience.deadline, DeadlineAfter(options.connect_timeout_ms * kMillisecond));
  const std::string why_not = WhyNotSelected(resources.transports, options);
  const bool was_named = options.transport != TransportChoice::kAuto;
  if (was_named && !why_not.empty() && options.rank == 0) Log(LogLevel::kWarn, 0, "%s", why_not.c_str());
  std::unique_ptr<Setup> result(new Setup(options, membership, resources));
  const PossibleLinks possible{resources.transports, FilterOf(resources.transports, options), SettingsOf(options)};
  ANNULUS_RETURN_IF_ERROR(
      FitMemory(result->nranks(), static_cast<size_t>(options.memory_bytes), possible, &result->plan_));
  result->OpenTelemetry();
  result->FindGpu();
  if (membership.nranks() > 1) {
    const auto meet = [&] { return result->Meet(patience, deadline); };
    ANNULUS_RETURN_IF_ERROR(NamingThisRank(result->rank(), meet));
  } else {
    result->wait_policy_ = ChooseWaitPolicy(1, static_cast<int>(FindCores().count), options.spin_us);
  }
  *setup = std::move(result);
  return Status();
}

void Setup::OpenTelemetry() {
  if (!options_.trace.empty()) {
    TraceOwner owner;
    owner.process_rank = membership_.process_rank(rank());
    owner.rank = rank();
    owner.nranks = nranks();
    owner.channels = plan_.channels;
    const Status written = telemetry_.OpenTrace(options_.trace, owner);
    if (!written.ok()) Log(LogLevel::kWarn, rank(), "%s", written.message().c_str());
  }
  // annulus-run shows the communicator of the first job; those split from it have other ranks.
  if (membership_.epoch() == 0) telemetry_.ClaimBoard(WatchVariable(), rank(), nranks());
}

// A communicator may be split from another by a thread that uses no GPU. Nothing is allocated, and no GPU taken up.
void Setup::FindGpu() {
  const bool is_given = options_.local_rank >= 0;
  const bool has_parent = options_.parent_turn >= 0;
  machine_.turn = has_parent ? options_.parent_turn : is_given ? static_cast<int>(options_.local_rank) : rank();
  const DeviceExports* const devices = resources_.domains != nullptr ? resources_.domains->exports() : nullptr;
  if (devices == nullptr) return;
  machine_.gpu = options_.device >= 0 ? static_cast<int>(options_.device) : devices->CurrentDevice();
  if (machine_.gpu < 0) machine_.gpu = options_.parent_gpu;
  if (machine_.gpu < 0) return;
  machine_.gpu_address = devices->PciAddress(machine_.gpu);
  machine_.gpu_name = devices->Name(machine_.gpu);
}

void Setup::TellMachine() const {
  std::string text = machine_.devices;
  if (machine_.gpu >= 0) {
    text = "GPU " + std::to_string(machine_.gpu) + " at " + machine_.gpu_address + " (" + machine_.gpu_name + ")" +
           (text.empty() ? "" : ", ") + text;
  }
  if (!text.empty()) Log(LogLevel::kInfo, rank(), "uses %s", text.c_str());
}

Status Setup::Meet(const Patience& patience, Deadline deadline) {
  const GiveUp& give_up = patience.give_up;
  ANNULUS_RETURN_IF_ERROR(AwaitLocalHost(options_.rendezvous, rank(), deadline, give_up, &machine_.local_host));
  Meeting meeting(options_, membership_, plan_);
  TransportSet::Offer offer;
  ANNULUS_RETURN_IF_ERROR(transports_.Listen(MakeTransportConfig(), &offer));
  machine_.devices = std::move(offer.devices);
  TellMachine();
  meeting.SetAddresses(std::move(offer.addresses), std::move(offer.reasons));
  meeting.SetHasDevices(resources_.domains != nullptr && !resources_.domains->devices().empty());
  ANNULUS_RETURN_IF_ERROR(meeting.Join(deadline, give_up, patience.met));
  job_ = meeting.job();
  // The control thread starts before the links, so that a rank that dies while links are made is noticed at once.
  ANNULUS_RETURN_IF_ERROR(StartControl(meeting.TakeConnections()));
  const Status linked = NamingThisRank(rank(), [&] { return Link(meeting, give_up, deadline); });
  if (linked.ok()) return linked;
  // Whatever failed, all ranks are told, and fail with the same message.
  const Verdict verdict = control_->Report(linked, Call());
  if (trace_file() != nullptr) trace_file()->trace()->SetVerdict(verdict, Now());
  TellLauncher(verdict);
  return {verdict.code, verdict.message, verdict.rank, verdict.os_errno};
}

TransportConfig Setup::MakeTransportConfig() {
  TransportConfig config;
  config.rank = rank();
  config.nranks = nranks();
  config.job_key = options_.job_key;
  config.slot_bytes = SlotBytes(plan_);
  config.slots = plan_.slots;
  config.local_host = machine_.local_host;
  config.gpu = machine_.gpu_address;
  config.turn = machine_.turn;
  config.settings = SettingsOf(options_);
  config.memory = resources_.memory;
  config.slot_memory = resources_.domains;
  config.reactor = &reactor_;
  return config;
}

Status Setup::StartControl(ControlConnections connections) {
  ControlConfig control;
  control.rank = rank();
  control.nranks = nranks();
  control.job_key = options_.job_key;
  control.encrypts = options_.encrypt == Encryption::kRequired;
  control.identity = {JobRunOf(options_), job_};
  control.connections = std::move(connections);
  control.on_verdict = [this] { Notice(); };
  return Control::Start(std::move(control), &control_);
}

Status Setup::Link(const Meeting& meeting, const GiveUp& give_up, Deadline deadline) {
  ANNULUS_RETURN_IF_ERROR(meeting.Conclude(resources_.transports, &membership_));
  local_ = FindLocalPlace(membership_.members(), rank());
  if (options_.local_rank >= 0) local_.rank = static_cast<int>(options_.local_rank);
  if (options_.local_size >= 0) local_.size = static_cast<int>(options_.local_size);
  wait_policy_ = ChooseWaitPolicy(local_.size, HostCores(membership_.members(), rank()), options_.spin_us);
  std::vector<std::vector<LinkRequest>> wanted;
  ANNULUS_RETURN_IF_ERROR(ChooseLinks(&wanted));
  std::optional<Pulse> pulse;
  if (give_up) pulse.emplace(&reactor_, kGiveUpCheck);
  ConnectContext context;
  context.identity = {JobRunOf(options_), job_};
  context.deadline = deadline;
  context.give_up = [this, &give_up] {
    Status status = Verdicted();
    return status.ok() && give_up ? give_up() : status;
  };
  Status connected = transports_.Connect(std::move(wanted), std::move(context), this);
  TellRefusals();  // Where what was to replace them failed too, they are why.
  return connected;
}

void Setup::Notice() {
  reactor_.Wake();
  const std::lock_guard<std::mutex> lock(bell_.mu);
  if (bell_.call != nullptr) bell_.call();
}

void Setup::CallOnVerdict(std::function<void()> call) {
  const std::lock_guard<std::mutex> lock(bell_.mu);
  bell_.call = std::move(call);
  if (control_ != nullptr && control_->has_verdict()) bell_.call();
}

Status Setup::Verdicted() const {
  if (!control_->has_verdict()) return Status();
  const Verdict& verdict = control_->verdict();
  return {verdict.code, verdict.message, verdict.rank, verdict.os_errno};
}

Status Setup::Select(int peer, int* index, std::string* passed_over, size_t first) const {
  const std::span<const Member> members = membership_.members();
  return SelectTransport(resources_.transports, EndOf(members, rank()), EndOf(members, peer), index, passed_over,
                         first);
}

LinkRequest Setup::RequestOf(int transport, int peer, int channel) const {
  const Member& own = membership_.members()[rank()];
  const Member& member = membership_.members()[peer];
  int other = 0;
  const bool has_other = Select(peer, &other, nullptr, static_cast<size_t>(transport) + 1).ok();
  return {peer, channel, member.host_id == own.host_id, member.addresses[transport], has_other};
}

Status Setup::ChooseLinks(std::vector<std::vector<LinkRequest>>* wanted) const {
  wanted->assign(resources_.transports.size(), {});
  for (const NeededLink& link : LinksNeeded(rank(), {plan_, topology()})) {
    int chosen = 0;
    ANNULUS_RETURN_IF_ERROR(Select(link.peer, &chosen, nullptr));
    (*wanted)[chosen].push_back(RequestOf(chosen, link.peer, link.channel));
  }
  return Status();
}

Status Setup::Replace(size_t* transport, LinkRequest* link, const std::string& why) {
  int other = 0;
  ANNULUS_RETURN_IF_ERROR(Select(link->peer, &other, nullptr, *transport + 1));
  refused_.push_back({link->peer, *transport, static_cast<size_t>(other), why});
  *link = RequestOf(other, link->peer, link->channel);
  *transport = static_cast<size_t>(other);
  return Status();
}

std::string Setup::Refusal(int peer) const {
  const auto found = std::ranges::find(refused_, peer, &Refused::peer);
  return found == refused_.end() ? "" : std::string(NameOf(found->chosen)) + " was refused: " + found->why;
}

void Setup::TellRefusals() const {
  std::set<std::string> told;
  for (const Refused& each : refused_) {
    if (!told.insert(each.why).second) continue;
    std::set<int> peers;
    for (const Refused& other : refused_) {
      if (other.why == each.why) peers.insert(other.peer);
    }
    std::string ranks;
    for (const int peer : peers) ranks += (ranks.empty() ? "" : ", ") + std::to_string(peer);
    Log(LogLevel::kWarn, rank(), "links with %s %s use %s in place of %s, more slowly: %s",
        peers.size() == 1 ? "rank" : "ranks", ranks.c_str(), NameOf(each.other), NameOf(each.chosen), each.why.c_str());
  }
}

void Setup::OnLink(size_t transport, const LinkRequest& link, std::unique_ptr<Endpoint> endpoint) {
  const std::string description = endpoint->Describe();
  const char* where = link.same_host ? "on the same host" : "on another host";
  const char* use = link.channel == plan_.channels ? "message link" : "link";
  const char* forced =
      FilterOf(resources_.transports, options_).choice == TransportChoice::kAuto ? "" : ", set by ANNULUS_TRANSPORT";
  int index = 0;
  std::string passed_over;
  (void)Select(link.peer, &index, &passed_over);
  if (const std::string refusal = Refusal(link.peer); !refusal.empty()) {
    passed_over += (passed_over.empty() ? "" : "; ") + refusal;
  }
  if (!passed_over.empty()) passed_over = "; " + passed_over;
  Log(LogLevel::kInfo, rank(), "%s to rank %d, %s: %s%s: %s%s", use, endpoint->peer(), where, NameOf(transport), forced,
      description.c_str(), passed_over.c_str());
  telemetry_.AddLink(link.peer, link.channel, NameOf(transport), description);
  links_->Add(link.peer, link.channel, std::move(endpoint));
}

void Setup::TellLauncher(const Verdict& verdict) const {
  if (verdict.rank < 0 || verdict.rank == rank()) return;
  // While a split is made, a verdict may number ranks as the parent does.
  SendVerdictNote(VerdictsVariable(), membership_.epoch() == 0 ? verdict.rank : VerdictNote::kAnother);
}

void Setup::Close() {
  if (control_ != nullptr) control_->Close();
  // The program may have learned of no failure, if it made no call since.
  if (control_ != nullptr && control_->has_verdict()) return CloseLinks(control_->verdict());
  links_->Close();
}

}  // namespace annulus
