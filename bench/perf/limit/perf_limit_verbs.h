// VerbsProbe: the limit of ranks that are linked by RDMA devices: plain writes between ring neighbours, both ways at
// once.
//
// Threads: one thread at a time; collective: all ranks call it in the same order.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "bench/perf/limit/perf_limit.h"
#include "bench/perf/limit/perf_raw_verbs.h"

namespace annulus::perf {

class VerbsProbe final : public Probe {
 public:
  // `edges[r]` is true where rank r is linked to the next one by a device. When some rank cannot set up its
  // connections, *probe stays null on every rank and *why_not says why.
  static Status Create(Group& group, const annulus_config_t& config, const std::vector<bool>& edges, Arena arena,
                       std::unique_ptr<Probe>* probe, std::string* why_not);

  size_t PassBytes(Kind kind, size_t bytes, int nranks) const override;
  Status Pass(Kind kind, size_t pass_bytes, int variant) override;
  int Variants(size_t) const override { return 1; }
  std::string Description() const override;

 private:
  VerbsProbe(const Group& group, Arena arena) : rank_(group.rank()), nranks_(group.size()), arena_(arena) {}
  Status Connect(Group& group, const std::vector<bool>& edges);

  // Moves so many bytes over the connection to each side.
  Status Exchange(RawVerbs::Side out, size_t out_bytes, RawVerbs::Side in, size_t in_bytes);

  const int rank_;
  const int nranks_;
  const Arena arena_;
  std::unique_ptr<RawVerbs> raw_;
  bool sends_ = false;                  // To the next rank.
  bool receives_ = false;               // From the previous one.
  bool mixed_ = false;                  // Some links are no such links.
  std::array<uint64_t, 2> received_{};  // By side: what passes have asked for, in all.
};

}  // namespace annulus::perf
