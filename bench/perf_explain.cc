#include "bench/perf_explain.h"

#include <ostream>

#include "base/options.h"
#include "collectives/explain.h"

namespace annulus::perf {

void Explain(const Options& options, const annulus_comm_t* comm, std::ostream& out) {
  const bool exists = options.ranks == 0;
  annulus::Options settings;
  if (!exists) {
    if (const Status status = ReadEnvironment(&settings); !status.ok()) {
      out << status.ToString() << "\n";
      return;
    }
  }
  const ExplainInput input = exists ? ExplainInputOf(comm) : HypotheticalInput(options.ranks, options.hosts, settings);
  out << ExplainJob(input) << (exists ? ExplainLinks(comm) : "");
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

}  // namespace annulus::perf
