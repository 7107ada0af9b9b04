// Exchange: the least loop that sums buffers of ranks on one host through slots in shared memory; the limit that
// allreduce over shared memory is compared with.
//
// A message is cut into pieces, and a piece into a share for each rank. Per piece a rank publishes its input of the
// others' shares in its slots, adds its own share from all ranks' slots to its output and to another slot, and copies
// the others' sums from there: each byte is touched as rarely as slots allow, and nothing else is done. The pieces are
// pipelined. A small message goes in one hop instead: everybody publishes all of it and adds all of everybody's.
//
// Threads: one per rank; collective: all ranks call it in the same order. The ranks are processes that map one file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "bench/peers/exchange_kernels.h"

namespace annulus::peers {

class Exchange {
 public:
  static constexpr int kMaxRanks = kMaxOthers + 1;
  static constexpr size_t kOneHopBytes = 64 << 10;

  // How it is done: what is best depends on the size and on how far apart the processors are.
  struct Way {
    bool one_hop = false;  // Only up to kOneHopBytes.
    Streaming streaming;
    // Takes so many slots in turn that they leave the caches that a processor has for itself before their turn comes
    // again. Near processors write them faster then.
    bool many_slots = false;
  };

  // `path` names the file that all ranks share, empty at first; it lies in memory (/dev/shm).
  static Status Open(const std::string& path, int rank, int nranks, Exchange* exchange);
  Exchange() = default;
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // recv = sum over ranks of send; both aligned to 64 bytes; in place when equal.
  Status Allreduce(const float* send, float* recv, size_t count, Way way);
  // Returns once every rank has called it.
  Status Barrier();

 private:
  struct Rank;     // What a rank shows the others.
  struct Message;  // A call's arguments and cut.

  Status OneHop(const float* send, float* recv, size_t count, Way way);
  void Publish(const Message& message, size_t piece);
  Status Reduce(const Message& message, size_t piece);
  Status Collect(const Message& message, size_t piece);
  // Waits until `flag` of every rank is at least that.
  template <typename Flag>
  Status WaitFor(Flag flag, uint64_t least) const;

  std::array<Rank*, kMaxRanks> ranks_{};  // In one mapping.
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  int rank_ = 0;
  int nranks_ = 0;
  int spins_ = 1;
  uint64_t pieces_ = 0;  // Before this call, since Open.
  uint64_t hops_ = 0;
  uint64_t barriers_ = 0;
};

}  // namespace annulus::peers
