// Limit: the time that a collective would take if it did nothing but its least unavoidable work, measured in this run.
//
// Which work that is depends on the links of the ring (docs/benchmarks/README.md):
//  * all ranks on one host, over shared memory: every rank copies its input to its output, all ranks at once, and then
//    waits for one flag of its neighbour. No algorithm over host memory reads and writes less than that. With buffers
//    on a GPU it is the GPU that copies.
//  * TCP: every rank sends to the next what the ring sends, and receives as much from the previous one, both at once,
//    over one plain socket per link; nothing is reduced.
//  * InfiniBand or RoCE: the same by plain RDMA writes, over one queue pair per link. Ranks that share memory beside
//  such
//    links send nothing.
//  * pingpong, over any: the same steps, but one rank of each pair after the other.
//
// gather and scatter have no limit: all their data passes through one rank, while the probes load all ranks alike.
//
// Threads: one thread at a time; collective: all ranks call it in the same order.
#pragma once

#include <annulus.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bench/perf/perf_buffers.h"
#include "bench/perf/perf_group.h"
#include "bench/perf/perf_measure.h"

namespace annulus::perf {

// Who sends to whom, and when.
enum class Pattern { kRing, kChain, kPingpong };

Pattern PatternOf(Kind kind);

// One kind of plain exchange.
class Probe {
 public:
  virtual ~Probe() = default;
  // The work that this probe does for one call; 0 when it says nothing about calls of that kind.
  virtual size_t PassBytes(Kind kind, size_t bytes, int nranks) const = 0;
  // Does it once, for pingpong there and back. `variant` is one of the `variants` ways to do it; the quickest counts.
  virtual Status Pass(Kind kind, size_t pass_bytes, int variant) = 0;
  virtual int Variants(size_t pass_bytes) const = 0;
  virtual std::string Description() const = 0;
};

class Limit {
 public:
  // Finds out which links the ring has and sets up the probe for them. A probe that cannot be set up is no error: the
  // description says why there is no limit. Without `wanted` only the links are found out.
  static Status Create(Group& group, const annulus_config_t& config, Arena arena, bool wanted,
                       std::unique_ptr<Limit>* limit);

  // The limit of a call whose larger buffer has `bytes`; 0 when there is none. Of a group of `calls` it is their share
  // of one exchange of all their data; of pingpong half of the way there and back.
  Status Measure(Group& group, Kind kind, size_t bytes, int calls, double* median_us);

  // Hosts of the job.
  int hosts() const { return hosts_; }
  // What the ring's links are: titles of transports, or "none".
  const std::string& links() const { return links_; }
  // One sentence: what is measured as the limit, or why nothing is.
  const std::string& description() const { return description_; }
  // Time of the probe's exchange of 8 bytes: tells which placement of the cores this run had. 0 when unknown.
  double latency_us() const { return latency_us_; }

 private:
  Limit() = default;
  // `links`: by rank, the transport of its link to the next one, as an index in Transports().
  Status SetUpProbe(Group& group, const annulus_config_t& config, Arena arena, const std::vector<int32_t>& links);

  int hosts_ = 1;
  std::string links_;
  std::string description_;
  double latency_us_ = 0;
  std::unique_ptr<Probe> probe_;
  std::map<std::tuple<Pattern, size_t>, double> measured_;  // By bytes of the pass; times of whole passes.
};

}  // namespace annulus::perf
