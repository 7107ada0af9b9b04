#include "collectives/comm/explain.h"

#include <algorithm>
#include <cstdio>

#include "collectives/algorithms/table.h"
#include "collectives/comm/communicator.h"
#include "collectives/engine/memory_budget.h"
#include "collectives/membership/members.h"
#include "transport/select/select.h"

namespace annulus {
namespace {

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string Microseconds(double seconds) { return Number(seconds * 1e6) + " us"; }

std::string Gigabytes(double byte_seconds) {
  return byte_seconds <= 0 ? std::string("no limit") : Number(1e-9 / byte_seconds) + " GB/s";
}

const char* OrderText(Algorithm algorithm) {
  return OrderOf(algorithm) == Order::kRing ? "adds in the ring's order" : "adds in an order of its own";
}

std::string CostsText(const LinkCosts& costs) {
  return "latency " + Microseconds(costs.latency_s) + ", per message " + Microseconds(costs.message_s) + ", link " +
         Gigabytes(costs.byte_s) + ", core moves " + Gigabytes(costs.move_byte_s) + " and reduces " +
         Gigabytes(costs.reduce_byte_s);
}

int Hosts(const Topology& layout) { return layout.host_of.empty() ? 1 : *std::ranges::max_element(layout.host_of) + 1; }

bool HasNear(const Topology& layout) { return Hosts(layout) < layout.nranks; }

std::string NearText(const Topology& layout) {
  const std::string title = layout.near->title;
  return layout.near->same_host_only ? title : title + " on one host";
}

// Link costs of that algorithm in calls of `bytes`. Up to two lines.
std::string LinksText(const ExplainInput& input, Algorithm algorithm, size_t bytes, const std::string& of) {
  const LinkKinds links = input.choice.CostsFor(algorithm, bytes).links;
  std::string text;
  if (HasNear(input.topology)) text += "#   " + NearText(input.topology) + of + ": " + CostsText(links.near) + "\n";
  if (Hosts(input.topology) > 1) text += "#   between hosts" + of + ": " + CostsText(links.far) + "\n";
  return text;
}

std::string PlanText(const ScheduleParams& params) {
  std::string text = AlgorithmText(params.algorithm);
  if (!RowOf(params.algorithm).is_sliced) return text + ", not sliced";
  return text + ", slices of up to " + std::to_string(params.slice_bytes) + " bytes, " +
         std::to_string(params.round_slices) + " in a round, " + std::to_string(params.channels) +
         (params.channels == 1 ? " channel" : " channels");
}

// What takes device memory has the time of the ranks' question (shared_fold_row.cc).
std::string TimeText(const Candidate& candidate) {
  const bool asks = RowOf(candidate.algorithm).takes_device_memory;
  return Microseconds(candidate.seconds) + (asks ? " for the ranks' question; the GPUs' time is not modelled" : "");
}

std::string CandidateText(const Candidate& candidate, bool is_chosen) {
  std::string text = std::string(is_chosen ? "  * " : "    ") + AlgorithmText(candidate.algorithm);
  text.resize(std::max<size_t>(text.size() + 1, 16), ' ');
  if (candidate.why_not != nullptr) return text + "no candidate: " + candidate.why_not + "\n";
  if (candidate.seconds == 0) return text + "in rounds; its time is not modelled\n";
  return text + TimeText(candidate) + ", " + OrderText(candidate.algorithm) + "\n";
}

std::string NoteOnLinks(const Options& options, TransportList transports) {
  if (options.encrypt != Encryption::kRequired) return "";
  const std::string why_not = WhyNotSelected(transports, options);
  return "ANNULUS_ENCRYPT: what ranks send over a network is encrypted" + (why_not.empty() ? "" : "; " + why_not);
}

// Why it is no better transport to that rank; "" where it is the best.
std::string PassedOverText(const Communicator& communicator, int peer) {
  const std::span<const Member> members = communicator.membership().members();
  int index = 0;
  std::string why;
  const Status chosen = SelectTransport(communicator.transports(), EndOf(members, communicator.rank()),
                                        EndOf(members, peer), &index, &why);
  if (!chosen.ok()) return "";
  if (const std::string refusal = communicator.Refusal(peer); !refusal.empty()) {
    why += (why.empty() ? "" : "; ") + refusal;
  }
  return why.empty() ? "" : " (" + why + ")";
}

}  // namespace

ExplainInput ExplainInputOf(const annulus_comm_t* comm) {
  const Communicator* const communicator = reinterpret_cast<const Communicator*>(comm);
  return {communicator->plan(), communicator->topology(), communicator->choice(), communicator->choice_source(),
          NoteOnLinks(communicator->options(), Transports())};
}

Status HypotheticalInput(int nranks, int hosts, const Options& options, TransportList transports,
                         std::optional<ExplainInput>* input) {
  PlanSettings settings = PlanSettingsOf(options);
  const TransportFilter filter = FilterOf(transports, options);
  ANNULUS_RETURN_IF_ERROR(FitMemory(nranks, static_cast<size_t>(options.memory_bytes),
                                    {transports, filter, SettingsOf(options)}, &settings));
  const bool was_named = filter.choice != TransportChoice::kAuto;
  std::vector<Member> members(nranks);
  for (int rank = 0; rank < nranks; ++rank) {
    members[rank].host_id = std::to_string(static_cast<int64_t>(rank) * hosts / nranks);
    members[rank].cores.digest = static_cast<uint64_t>(rank);
    for (const TransportInfo* each : transports) {
      const bool has_it = Allows(filter, *each) && (was_named || !each->needs_device);
      members[rank].addresses.emplace_back(has_it ? "anywhere" : "");
    }
  }
  const Topology topology = FindTopology(transports, members);
  std::string source = "nominal costs, of ranks that do not exist";
  if (options.tuning == Tuning::kMeasured) source += ": there is nothing that ANNULUS_TUNING=measured could measure";
  input->emplace(
      ExplainInput{settings, topology, AlgorithmChoice(settings, topology), source, NoteOnLinks(options, transports)});
  return Status();
}

std::string ExplainJob(const ExplainInput& input) {
  const Topology& layout = input.topology;
  const int hosts = Hosts(layout);
  std::string text = "# " + std::to_string(layout.nranks) + " ranks on " + std::to_string(hosts) +
                     (hosts == 1 ? " host, " : " hosts, ") + Number(layout.ranks_per_core) +
                     " ranks per core at most\n# costs: " + input.source + "\n";
  if (!input.links.empty()) text += "# " + input.links + "\n";
  const AlgorithmJob job{input.settings, input.topology};
  const std::optional<MeasuredFactors>& measured = input.choice.measured();
  if (!measured) text += LinksText(input, Algorithm::kRing, 0, "");  // All algorithms have the same costs.
  for (size_t place = 0; measured && place < measured->size(); ++place) {
    const AlgorithmName& each = kAlgorithms[place];
    const AlgorithmFactors& factors = (*measured)[place];
    if (factors.is_measured == 0) continue;
    const std::string of = std::string(" of ") + each.name;
    text += LinksText(input, each.algorithm, 0, of);
    if (ModelledSeconds(job, CostFactors(), each.algorithm, 2 * kMostMiddleBytes) == 0) continue;
    text += LinksText(input, each.algorithm, SIZE_MAX,
                      of + ", more than " + std::to_string(kMostMiddleBytes / 1024) + " KiB");
  }
  const auto& wanted = input.settings.algorithm;
  if (!measured) text += "# chosen by fixed bounds of size and number of ranks, not by expected times\n";
  if (wanted) text += std::string("# ANNULUS_ALGORITHM: ") + AlgorithmText(*wanted) + ", where it is possible\n";
  return text;
}

std::string ExplainLinks(const annulus_comm_t* comm) {
  const Communicator* const communicator = reinterpret_cast<const Communicator*>(comm);
  std::string text;
  for (int peer = 0; peer < communicator->nranks(); ++peer) {
    const std::string transport = communicator->ReadPeer(peer).transport;
    if (transport.empty()) continue;
    text += "#   rank " + std::to_string(peer) + ": " + transport + PassedOverText(*communicator, peer);
    if (const std::optional<bool> streams = communicator->StreamsSlots(peer)) {
      text += std::string(", slots are written by ") + (*streams ? "streaming" : "plain") + " stores";
    }
    text += "\n";
    if (const std::string link = communicator->DescribeLink(peer); !link.empty()) text += "#     " + link + "\n";
  }
  return text.empty() ? "" : "# links of rank " + std::to_string(communicator->rank()) + ":\n" + text;
}

bool FindKind(const std::string& name, CollectiveKind* kind) {
  for (int number = 1; number <= static_cast<int>(kLastKind); ++number) {
    if (name != KindName(static_cast<CollectiveKind>(number))) continue;
    *kind = static_cast<CollectiveKind>(number);
    return true;
  }
  return false;
}

std::string ExplainCall(const ExplainInput& input, CollectiveKind kind, size_t count, size_t element_bytes) {
  PlanInput plan;
  plan.call.kind = kind;
  plan.call.count = count;
  plan.element_bytes = element_bytes;
  plan.nranks = input.topology.nranks;
  const std::vector<Part> parts(static_cast<size_t>(plan.nranks), Part{0, count});
  if (HasVariableParts(kind)) {
    plan.input_parts = plan.output_parts = parts.data();
    plan.call.count = IsDirect(kind) ? 0 : count * parts.size();
  }
  const ScheduleParams params = MakePlan(plan, input.settings, input.choice);
  std::string text = std::string(KindName(kind)) + " of " + std::to_string(count) + " x " +
                     std::to_string(element_bytes) + " bytes: " + PlanText(params);
  std::vector<Candidate> candidates = input.choice.Candidates(kind, SentAtOnce(plan));
  for (Candidate& each : candidates) {
    if (each.why_not == nullptr) each.why_not = TypeWhyNot(plan, input.settings, each.algorithm);
  }
  for (const Candidate& each : candidates) {
    if (each.algorithm == params.algorithm && each.seconds > 0) text += "; expected " + TimeText(each);
  }
  text += candidates.size() == 1 ? "; there is no other way\n" : "\n";
  for (const Candidate& each : candidates) {
    if (candidates.size() > 1) text += CandidateText(each, each.algorithm == params.algorithm);
  }
  return text;
}

}  // namespace annulus
