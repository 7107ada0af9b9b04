#include "bench/perf/perf_explain.h"

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "collectives/comm/explain.h"
#include "collectives/comm/places/explain_places.h"
#include "collectives/core/options.h"
#include "transport/select/select.h"

namespace annulus::perf {
namespace {

// More slices to every peer than a link of shared memory needs to judge the peer's distance. Too many ranks for an
// all-to-all have links to their neighbours only.
Status UseLinks(Group& group) {
  constexpr size_t kFloats = 16 * 1024;
  constexpr int kCalls = 64;
  std::vector<float> values(kFloats * static_cast<size_t>(group.size()));
  std::vector<float> others(values.size());
  for (int call = 0; call < kCalls; ++call) {
    const annulus_status_t done =
        annulus_alltoall(group.comm(), values.data(), others.data(), kFloats, ANNULUS_FLOAT32);
    if (done == ANNULUS_UNSUPPORTED) return Status();
    ANNULUS_RETURN_IF_ERROR(group.Check(done));
  }
  return Status();
}

void ExplainCalls(const Options& options, const ExplainInput& input, std::ostream& out) {
  for (const Kind kind : options.kinds) {
    CollectiveKind collective{};
    if (!FindKind(KindName(kind), &collective)) {
      out << KindName(kind) << ": messages, which go straight from rank to rank\n";
      continue;
    }
    for (const annulus_type_t type : options.types) {
      for (const size_t bytes : kind == Kind::kBarrier ? std::vector<size_t>{0} : Sizes(options)) {
        const CallSpec spec = SpecForBytes(kind, type, ANNULUS_SUM, 0, bytes, input.topology.nranks);
        out << ExplainCall(input, collective, spec.count, TypeBytes(static_cast<DataType>(type)));
      }
    }
  }
}

}  // namespace

Status ExplainGroup(const Options& options, Group& group, std::ostream& out) {
  ANNULUS_RETURN_IF_ERROR(UseLinks(group));
  std::string places;
  ANNULUS_RETURN_IF_ERROR(ExplainPlaces(group.comm(), &places));
  if (group.rank() == 0) {
    const ExplainInput input = ExplainInputOf(group.comm());
    out << ExplainJob(input) << places << ExplainLinks(group.comm());
    ExplainCalls(options, input, out);
  }
  return group.Barrier();  // Nobody leaves while rank 0 looks at its links.
}

Status ExplainRanks(const Options& options, std::ostream& out) {
  annulus::Options settings;
  ANNULUS_RETURN_IF_ERROR(ReadEnvironment(&settings));
  const TransportInfo* const only = OnlyTransport(Transports(), settings.transport);
  if (only != nullptr && only->same_host_only && options.hosts > 1) {
    return Status::Invalid(std::string("ANNULUS_TRANSPORT is ") + only->name +
                           ", which links ranks of one host only, and --hosts is " + std::to_string(options.hosts));
  }
  std::optional<ExplainInput> input;
  ANNULUS_RETURN_IF_ERROR(HypotheticalInput(options.ranks, options.hosts, settings, Transports(), &input));
  out << ExplainJob(*input);
  ExplainCalls(options, *input, out);
  return Status();
}

}  // namespace annulus::perf
