// SocketProbe: the limit of ranks that are linked by system calls: plain sockets between ring neighbours, both ways at
// once.
//
// Threads: one thread at a time; collective: all ranks call it in the same order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/perf/limit/perf_limit.h"

namespace annulus::perf {

class SocketProbe final : public Probe {
 public:
  // `edges[r]` is true where messages from rank r to the next one cost system calls. When some rank cannot set up its
  // sockets, *probe stays null on every rank and *why_not says why.
  static Status Create(Group& group, const annulus_config_t& config, const std::vector<bool>& edges, Arena arena,
                       std::unique_ptr<Probe>* probe, std::string* why_not);
  ~SocketProbe() override;

  size_t PassBytes(Kind kind, size_t bytes, int nranks) const override;
  Status Pass(Kind kind, size_t pass_bytes, int variant) override;
  int Variants(size_t) const override { return 1; }
  std::string Description() const override;

 private:
  explicit SocketProbe(Arena arena) : arena_(arena) {}

  // Moves so many bytes each way, both at once.
  struct Way {
    int socket;
    size_t bytes;
  };
  Status Exchange(Way out, Way in) const;
  // Non-blocking: moves what the socket takes or has; sets *moved when that was anything.
  Status SendSome(Way out, size_t* sent, bool* moved) const;
  Status ReceiveSome(Way in, size_t* received, bool* moved) const;

  Arena arena_;
  int to_next_ = -1;  // -1 where the link is no such link.
  int from_prev_ = -1;
  bool opens_chain_ = false;   // Rank 0: a chain brings it nothing.
  bool closes_chain_ = false;  // The last rank: a chain ends there.
  bool answers_ = false;       // Has an odd rank: in a pingpong the previous rank is first.
  bool mixed_ = false;         // Some links are no such links.
};

}  // namespace annulus::perf
