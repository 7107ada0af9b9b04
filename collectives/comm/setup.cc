#include "collectives/comm/setup.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/identity.h"
#include "base/library.h"
#include "base/log.h"
#include "collectives/algorithms/table.h"
#include "collectives/engine/memory_budget.h"
#include "collectives/membership/bootstrap.h"
#include "collectives/membership/host_id.h"
#include "collectives/membership/local_host.h"
#include "collectives/membership/peer_info.h"
#include "collectives/observe/verdict_note.h"
#include "collectives/reduce/memory_domains.h"
#include "transport/port_handout.h"
#include "transport/pulse.h"
#include "transport/select/select.h"

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

static JobRun RunOf(const Options& options) { return {options.run_id, static_cast<uint32_t>(options.restart)}; }

Setup::Setup(const Options& options, const Membership& membership, const Resources& resources)
    : options_(options),
      resources_(resources),
      membership_(membership),
      plan_(PlanSettingsOf(options)),
      cores_(FindCores()),
      host_cores_(static_cast<int>(cores_.count)),
      host_id_(options.host_id.empty() ? FindHostId() : options.host_id),
      monitor_(nranks()),
      links_(std::make_unique<Links>(nranks(), plan_.channels + 1)) {}

Setup::~Setup() { Close(); }

Status Setup::Establish(const Options& options, const Membership& membership, const Resources& resources,
                        const GiveUp& give_up, std::unique_ptr<Setup>* setup) {
  Log(LogLevel::kInfo, static_cast<int>(options.rank), "Annulus %s; %s", LibraryText(ThisLibrary()).c_str(),
      RunText(RunOf(options)).c_str());
  WarnOfUnknownVariables(static_cast<int>(options.rank), static_cast<int>(options.local_rank));
  const std::string source = options.launcher.empty() ? "the configuration" : options.launcher;
  Log(LogLevel::kInfo, static_cast<int>(options.rank), "rank %lld of %d, from %s", static_cast<long long>(options.rank),
      membership.nranks(), source.c_str());
  const Deadline deadline = DeadlineAfter(options.connect_timeout_ms * kMillisecond);
  std::unique_ptr<Setup> result(new Setup(options, membership, resources));
  const PossibleLinks possible{resources.transports, options.transport, SettingsOf(options)};
  ANNULUS_RETURN_IF_ERROR(
      FitMemory(result->nranks(), static_cast<size_t>(options.memory_bytes), possible, &result->plan_));
  result->OpenTrace();
  result->ClaimBoard();
  if (membership.nranks() > 1) ANNULUS_RETURN_IF_ERROR(result->Meet(give_up, deadline));
  result->wait_policy_ = ChooseWaitPolicy(result->local_.size, result->host_cores_, options.spin_us);
  *setup = std::move(result);
  return Status();
}

void Setup::OpenTrace() {
  if (options_.trace.empty()) return;
  TraceOwner owner;
  owner.process_rank = membership_.process_rank(rank());
  owner.rank = rank();
  owner.nranks = nranks();
  owner.channels = plan_.channels;
  const Status written = TraceFile::Create(options_.trace, owner, &trace_file_);
  if (!written.ok()) Log(LogLevel::kWarn, rank(), "%s", written.message().c_str());
  monitor_.set_trace(trace_file_->trace());
}

// annulus-run shows the communicator of the first job; those split from it have other ranks.
void Setup::ClaimBoard() {
  if (membership_.epoch() > 0) return;
  board_ = BoardClaim::Take(WatchVariable(), rank(), nranks());
  if (board_ != nullptr) monitor_.set_board(board_->board());
}

Status Setup::Meet(const GiveUp& give_up, Deadline deadline) {
  ANNULUS_RETURN_IF_ERROR(FindLocalHost(options_.rendezvous, deadline, &local_host_));
  PeerInfo own;
  own.member.host_id = host_id_;
  own.plan = plan_;
  own.transport = ValueText(SettingNamed("transport"), options_);
  own.priorities = static_cast<int>(options_.priorities);
  own.memory_bytes = static_cast<uint64_t>(options_.memory_bytes);
  own.tuning = ValueText(SettingNamed("tuning"), options_);
  own.member.cores = cores_;
  own.further = FurtherTexts(options_);
  ANNULUS_RETURN_IF_ERROR(Listen(&own.member));

  BootstrapConfig config;
  config.rank = rank();
  config.nranks = nranks();
  config.rendezvous = options_.rendezvous;
  config.job_key = options_.job_key;
  config.identity = {RunOf(options_), options_.parent_job, options_.epoch};
  config.blob = Encode(own);
  config.deadline = deadline;
  config.give_up = give_up;
  BootstrapResult met;
  ANNULUS_RETURN_IF_ERROR(MeetAt(&config, &met));
  // The control thread starts before the links, so that a rank that dies while links are made is noticed at once.
  ControlConfig control;
  control.rank = rank();
  control.nranks = nranks();
  control.job_key = options_.job_key;
  control.identity = {RunOf(options_), met.job_id};
  control.connections = std::move(met.connections);
  control.on_verdict = [this] { reactor_.Wake(); };
  ANNULUS_RETURN_IF_ERROR(Control::Start(std::move(control), &control_));
  std::optional<Pulse> pulse;
  if (give_up) pulse.emplace(&reactor_, kGiveUpCheck);
  ConnectContext context;
  job_ = met.job_id;
  context.identity = {RunOf(options_), job_};
  context.deadline = deadline;
  context.give_up = [this, &give_up] {
    Status status = Verdicted();
    return status.ok() && give_up ? give_up() : status;
  };
  Status connected = Learn(met.blobs);
  if (connected.ok()) connected = ConnectLinks(context);
  if (connected.ok()) return connected;
  // Whatever failed, all ranks are told, and fail with the same message.
  const Verdict verdict = control_->Report(connected, Call());
  if (trace_file_ != nullptr) trace_file_->trace()->SetVerdict(verdict, Now());
  TellLauncher(verdict);
  return {verdict.code, verdict.message, verdict.rank, verdict.os_errno};
}

// Rank 0 of a job that annulus-run started listens with the socket that has reserved the port since then.
Status Setup::MeetAt(BootstrapConfig* config, BootstrapResult* met) const {
  config->listener = options_.listener;
  const char* const from = RendezvousFromVariable();
  if (rank() != 0 || membership_.epoch() > 0 || from == nullptr) return Bootstrap(*config, met);
  config->listener = FetchPort(from, config->deadline);
  Status status = Bootstrap(*config, met);
  if (config->listener >= 0) ::close(config->listener);
  return status;
}

Status Setup::Verdicted() const {
  if (!control_->has_verdict()) return Status();
  const Verdict& verdict = control_->verdict();
  return {verdict.code, verdict.message, verdict.rank, verdict.os_errno};
}

TransportConfig Setup::MakeTransportConfig() const {
  TransportConfig config;
  config.rank = rank();
  config.nranks = nranks();
  config.job_key = options_.job_key;
  config.slot_bytes = SlotBytes(plan_);
  config.slots = plan_.slots;
  config.local_host = local_host_;
  config.settings = SettingsOf(options_);
  config.memory = resources_.memory;
  config.slot_memory = resources_.domains;
  return config;
}

Status Setup::Listen(Member* own) {
  TransportConfig config = MakeTransportConfig();
  config.reactor = &reactor_;
  std::string why;
  bool any = false;
  for (const TransportInfo* info : resources_.transports) {
    transports_.push_back(nullptr);
    own->addresses.emplace_back();
    own->reasons.emplace_back();
    if (!Allows(options_.transport, *info)) continue;
    std::unique_ptr<Transport> transport = info->create(config);
    Status usable = transport->Probe();
    if (usable.ok()) usable = transport->LocalAddress(&own->addresses.back());
    if (!usable.ok()) {
      own->addresses.back().clear();
      own->reasons.back() = usable.message();
      why += std::string(" ") + info->name + ": " + usable.message() + ";";
      Log(LogLevel::kInfo, rank(), "transport %s is not usable here: %s", info->name, usable.message().c_str());
      continue;
    }
    transports_.back() = std::move(transport);
    any = true;
  }
  if (any) return Status();
  return {Code::kUnsupported, "no transport is usable at rank " + std::to_string(rank()) + ":" + why};
}

Status Setup::Learn(const std::vector<std::string>& blobs) {
  std::vector<PeerInfo> peers(blobs.size());
  for (size_t r = 0; r < blobs.size(); ++r)
    ANNULUS_RETURN_IF_ERROR(Decode(blobs[r], static_cast<int>(r), resources_.transports.size(), &peers[r]));
  ANNULUS_RETURN_IF_ERROR(CheckAgreement(peers));
  std::vector<Member> members;
  for (PeerInfo& peer : peers) members.push_back(std::move(peer.member));
  host_cores_ = HostCores(members, rank());
  local_ = FindLocalPlace(members, rank());
  if (options_.local_rank >= 0) local_.rank = static_cast<int>(options_.local_rank);
  if (options_.local_size >= 0) local_.size = static_cast<int>(options_.local_size);
  membership_ = membership_.Met(resources_.transports, std::move(members));
  return Status();
}

// The links that this rank needs, by transport.
Status Setup::ChooseLinks(std::vector<std::vector<LinkRequest>>* wanted) const {
  wanted->assign(resources_.transports.size(), {});
  const Member& own = membership_.members()[rank()];
  const auto end_of = [](int rank, const Member& member) {
    return SelectEnd{rank, member.host_id, member.addresses, member.reasons};
  };
  for (const NeededLink& link : LinksNeeded(rank(), {plan_, topology()})) {
    const Member& peer = membership_.members()[link.peer];
    int chosen = 0;
    ANNULUS_RETURN_IF_ERROR(
        SelectTransport(resources_.transports, end_of(rank(), own), end_of(link.peer, peer), &chosen));
    (*wanted)[chosen].push_back({link.peer, link.channel, peer.host_id == own.host_id, peer.addresses[chosen]});
  }
  return Status();
}

Status Setup::ConnectLinks(const ConnectContext& context) {
  std::vector<std::vector<LinkRequest>> wanted;
  ANNULUS_RETURN_IF_ERROR(ChooseLinks(&wanted));
  for (size_t t = 0; t < wanted.size(); ++t) {
    if (transports_[t] == nullptr) continue;
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    // Also called when no links are wanted: it stops listening.
    ANNULUS_RETURN_IF_ERROR(transports_[t]->Connect(wanted[t], context, &endpoints));
    for (size_t i = 0; i < endpoints.size(); ++i) {
      NoteLink(*endpoints[i], resources_.transports[t]->name, wanted[t][i]);
      links_->Add(wanted[t][i].peer, wanted[t][i].channel, std::move(endpoints[i]));
    }
  }
  return Status();
}

void Setup::NoteLink(const Endpoint& endpoint, const char* transport, const LinkRequest& link) {
  LogLink(endpoint, transport, link);
  monitor_.SetTransport(link.peer, transport);
  if (trace_file_ == nullptr) return;
  trace_file_->trace()->AddLink({link.peer, link.channel, transport, endpoint.Describe(), Now()});
}

void Setup::LogLink(const Endpoint& endpoint, const char* transport, const LinkRequest& link) const {
  const char* where = link.same_host ? "on the same host" : "on another host";
  const char* use = link.channel == plan_.channels ? "message link" : "link";
  const char* forced = options_.transport == TransportChoice::kAuto ? "" : ", set by ANNULUS_TRANSPORT";
  Log(LogLevel::kInfo, rank(), "%s to rank %d, %s: %s%s: %s", use, endpoint.peer(), where, transport, forced,
      endpoint.Describe().c_str());
}

void Setup::TellLauncher(const Verdict& verdict) const {
  if (verdict.rank < 0 || verdict.rank == rank()) return;
  // While a split is made, a verdict may number ranks as the parent does.
  SendVerdictNote(VerdictsVariable(), membership_.epoch() == 0 ? verdict.rank : VerdictNote::kAnother);
}

void Setup::Close() {
  if (control_ != nullptr) control_->Close();
  links_->Close();
}

}  // namespace annulus
