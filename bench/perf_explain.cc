#include "bench/perf_explain.h"

#include <ostream>
#include <vector>

#include "base/options.h"
#include "collectives/explain.h"

namespace annulus::perf {
namespace {

// As many slices as a link of shared memory looks at to judge its peer's distance, and more.
Status UseLinks(Group& group) {
  constexpr size_t kDoubles = 128 * 1024;
  constexpr int kCalls = 8;
  std::vector<double> values(kDoubles);
  for (int call = 0; call < kCalls; ++call) ANNULUS_RETURN_IF_ERROR(group.Max(values));
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
        const CallSpec spec = SpecForBytes(kind, type, ANNULUS_SUM, 0, bytes, input.nranks);
        out << ExplainCall(input, collective, spec.count, TypeBytes(static_cast<DataType>(type)));
      }
    }
  }
}

}  // namespace

Status ExplainGroup(const Options& options, Group& group, std::ostream& out) {
  ANNULUS_RETURN_IF_ERROR(UseLinks(group));
  if (group.rank() == 0) {
    const ExplainInput input = ExplainInputOf(group.comm());
    out << ExplainJob(input) << ExplainLinks(group.comm());
    ExplainCalls(options, input, out);
  }
  return group.Barrier();  // Nobody leaves while rank 0 looks at its links.
}

Status ExplainRanks(const Options& options, std::ostream& out) {
  annulus::Options settings;
  ANNULUS_RETURN_IF_ERROR(ReadEnvironment(&settings));
  if (settings.transport == "shm" && options.hosts > 1) {
    return Status::Invalid("ANNULUS_TRANSPORT is shm, which links ranks of one host only, and --hosts is " +
                           std::to_string(options.hosts));
  }
  const ExplainInput input = HypotheticalInput(options.ranks, options.hosts, settings);
  out << ExplainJob(input);
  ExplainCalls(options, input, out);
  return Status();
}

}  // namespace annulus::perf
