// What tests of failures share: a first call that succeeds on all ranks, a second that fails, and what every rank must
// be told of it.
//
// Threads: any; CallOnce is called by each rank.
#pragma once

#include <annulus.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {

// Goes around the ring, so that nobody can finish it on what a rank sent before it failed.
constexpr size_t kCount = 20'000;

// The call that fails comes after one that every rank completes.
constexpr uint64_t kFailedSequence = 2;

// A failure in which `culprit` has the part that the test's name tells, and `absent` never enters the second call.
struct Scene {
  std::string transport;
  int nranks;
  int culprit;
  int absent;
};

std::string SceneName(const testing::TestParamInfo<Scene>& info);
ClusterConfig ConfigOf(const Scene& scene);

// The first call, which succeeds, on all ranks before any goes on: what fails next must not overtake it anywhere.
void CallOnce(annulus_comm_t* comm, int rank, int nranks, Tally* called);

// On a communicator whose work has failed with `verdict`.
void ExpectRefusals(annulus_comm_t* comm, annulus_status_t verdict);

// The verdict of an abort, apart from the call.
void ExpectAborted(const ErrorCopy& error, int aborter);

// The error of a rank whose second call, an allreduce, failed.
void ExpectNamesTheCall(const ErrorCopy& error);
// The error of a rank that was in no call when it learnt of the failure.
void ExpectNamesNoCall(const ErrorCopy& error);
// The error of a rank that made its call while the verdict was on its way: it names the call or none.
void ExpectNamesTheCallOrNone(const ErrorCopy& error);

}  // namespace annulus
