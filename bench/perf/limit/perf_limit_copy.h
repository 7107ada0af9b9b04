// CopyProbe: the limit of ranks that share a host's memory: all of them copy at once, then each waits for one flag.
//
// Threads: one thread at a time; collective: all ranks call it in the same order.
#pragma once

#include <memory>
#include <string>

#include "bench/perf/limit/perf_limit.h"

namespace annulus::perf {

class CopyProbe final : public Probe {
 public:
  static Status Create(Group& group, Arena arena, std::unique_ptr<Probe>* probe);
  ~CopyProbe() override;

  size_t PassBytes(Kind kind, size_t bytes, int nranks) const override;
  Status Pass(Kind kind, size_t pass_bytes, int variant) override;
  int Variants(size_t pass_bytes) const override;
  std::string Description() const override;

 private:
  struct FlagPage;

  CopyProbe(const Group& group, Arena arena) : rank_(group.rank()), nranks_(group.size()), arena_(arena) {}
  Status ShareFlags(Group& group);
  // The page of another rank, whose words are those that it gathered; null when it cannot be mapped.
  static FlagPage* MapPeer(const int32_t* words);
  Status Copy(size_t bytes, int variant);
  // Tells that this rank has done its part of one more pass.
  void RaiseFlag();
  // Waits for the rank of that page, until it has done its part of so many passes.
  static Status WaitFor(const FlagPage* page, uint64_t passes);

  const int rank_;
  const int nranks_;
  Arena arena_;
  uint64_t passes_ = 0;
  FlagPage* own_ = nullptr;  // All null when the ranks may not map each other's memory.
  FlagPage* prev_ = nullptr;
  FlagPage* next_ = nullptr;
};

}  // namespace annulus::perf
