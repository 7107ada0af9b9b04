// Ranks as threads of a process of their own, on the stand-in for CUDA's driver, whose large calls in streams are
// folds: for tests that kill ranks, or have other GPUs than the rest.
//
// Threads: one for each rank.
#pragma once

#include <string>
#include <vector>

#include "tests/collectives/cuda/calls_in_stream.h"
#include "tests/collectives/cuda/mapped_fold.h"

namespace annulus {

struct FoldingRank {
  annulus_comm_t* comm;
  int number;
  int nranks;
  StreamUser* user;
  cuda::Stream stream;

  void Compare(const CallInStream& call) const { CompareOne(comm, number, nranks, user, stream, call); }
  CallsInStream NoCalls() const { return CallsInStream(comm, number, nranks, user); }
};

struct FoldingThreads {
  int nranks = 2;
  int gpus = 1;        // Rank i has GPU i % gpus.
  bool fails = false;  // Whether the communicator ends in the test.
  bool agrees = true;  // Whether calls are folds from the start.
};

// Calls body(rank) for each.
template <class Body>
void OnFoldingThreads(const FoldingThreads& threads, Body body) {
  InProcesses(1, [&](int) {
    const int gpus = threads.gpus;
    cuda::FakeControl* const fake =
        LoadDriver({.devices = gpus, .link = [](int, int) { return cuda::FakeLink::kNvlink; }});
    Cluster(FoldingRanks(threads.nranks)).Run([&](annulus_comm_t* comm, int number) {
      StreamUser user(number % gpus, number % gpus);
      const cuda::Stream stream = user.NewStream();
      if (threads.agrees) Agree(comm, &user, stream);
      body(FoldingRank{comm, number, threads.nranks, &user, stream});
      user.LetGo();
      EXPECT_TRUE(user.Drain(stream));
      if (!threads.fails) annulus_barrier(comm);
    });
    std::vector<std::string> violations = fake->Violations();
    // What gates were opened for in vain may work in the shared memory at a time. It is nobody's then.
    if (threads.fails)
      std::erase_if(violations, [](const std::string& each) { return each.ends_with(", in exports"); });
    EXPECT_EQ(violations, std::vector<std::string>());
  });
}

}  // namespace annulus
