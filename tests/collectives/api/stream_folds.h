// What tests of folds in streams share: ranks whose calls of some kilobytes are folds, and calls in a stream until they
// are.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/collectives/api/stream_user.h"
#include "tests/collectives/harness/cluster.h"

namespace annulus {

// Halves of the memory; calls of a 32nd of that may be folds.
constexpr size_t kPieceBytes = 64 * 1024;
// After so many all ranks know that they are.
constexpr int kCallsToAgree = 40;

inline ClusterConfig FoldingRanks(int nranks) {
  LoadDriver();
  ClusterConfig config;
  config.nranks = nranks;
  config.transport = "shm";
  config.small_bytes = 256;
  config.stream_fold_bytes = 2 * kPieceBytes;
  return config;
}

// Calls until those that follow are folds, if they may be.
inline void Agree(annulus_comm_t* comm, StreamUser* user, cuda::Stream stream) {
  constexpr size_t kBytes = 4096;
  std::byte* const memory = user->Allocate(kBytes);
  user->Fill(stream, memory, 1, kBytes);
  for (int i = 0; i < kCallsToAgree; ++i) {
    ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_OK) << LastMessage();
    if (i % 3 == 0) {
      ASSERT_TRUE(user->Drain(stream));
    }
  }
  ASSERT_TRUE(user->Drain(stream));
}

}  // namespace annulus
