#include "tests/collectives/control/sim_control_stories.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace annulus {
namespace {

// That of a call that fails early.
constexpr Nanoseconds kFarDeadline = 20 * kSecond;

Call Allreduce(uint64_t count) {
  Call call;
  call.sequence = 1;
  call.kind = CollectiveKind::kAllreduce;
  call.type = DataType::kFloat32;
  call.count = count;
  return call;
}

Status Timeout() { return Status(Code::kTimeout, "the collective did not finish before its deadline"); }

void EnterAll(SimControlJob* job, uint64_t last_count) {
  for (int rank = 0; rank < job->nranks(); ++rank) {
    const bool is_last = rank == job->nranks() - 1;
    job->At(kMillisecond, [=] { job->Enter(rank, Allreduce(is_last ? last_count : 200)); });
  }
}

void ReportAll(SimControlJob* job, int nranks, uint64_t last_count) {
  for (int rank = 0; rank < nranks; ++rank) {
    const uint64_t count = rank == job->nranks() - 1 ? last_count : 200;
    job->At(kCallDeadline + rank * kMicrosecond, [=] { job->Report(rank, Timeout(), Allreduce(count)); });
  }
}

void Mismatch(SimControlJob* job) {
  EnterAll(job, 100);
  ReportAll(job, job->nranks(), 100);
}

void LateRank(SimControlJob* job) {
  for (int rank = 0; rank + 1 < job->nranks(); ++rank) job->At(kMillisecond, [=] { job->Enter(rank, Allreduce(200)); });
  ReportAll(job, job->nranks() - 1, 200);
}

void AbortOf(SimControlJob* job, int rank) {
  EnterAll(job, 200);
  job->At(2 * kMillisecond, [=] { job->Abort(rank); });
}

// The neighbours of a rank that fails or dies find their links broken.
void BrokenLinks(SimControlJob* job) {
  const int last = job->nranks() - 1;
  for (const int rank : {0, last - 1}) {
    const Status broken(Code::kPeerLost, "the link broke", last, 104);
    job->At(2 * kMillisecond + 100 * kMicrosecond, [=] { job->Report(rank, broken, Allreduce(200), kFarDeadline); });
  }
}

void FailedRank(SimControlJob* job) {
  const int last = job->nranks() - 1;
  EnterAll(job, 200);
  const Status failure(Code::kSystem, "out of luck");
  job->At(2 * kMillisecond, [=] { job->Report(last, failure, Allreduce(200), kFarDeadline); });
  BrokenLinks(job);
}

void Death(SimControlJob* job) {
  const int last = job->nranks() - 1;
  EnterAll(job, 200);
  job->At(2 * kMillisecond, [=] { job->Kill(last); });
  BrokenLinks(job);
}

void EarlyLeaver(SimControlJob* job) {
  const int last = job->nranks() - 1;
  job->At(kMillisecond, [=] { job->Close(last); });
  for (int rank = 0; rank < last; ++rank) job->At(2 * kMillisecond, [=] { job->Enter(rank, Allreduce(200)); });
  ReportAll(job, last, 200);
}

const Story kStories[] = {
    {"a mismatch", Mismatch, Code::kMismatch, 1, Code::kMismatch, true},
    {"a late rank", LateRank, Code::kTimeout, 1, Code::kTimeout, true},
    {"an abort", [](SimControlJob* job) { AbortOf(job, job->nranks() - 1); }, Code::kAborted, 1},
    {"an abort by rank 0", [](SimControlJob* job) { AbortOf(job, 0); }, Code::kAborted, 0},
    {"a failed rank", FailedRank, Code::kSystem, 1},
    {"a death", Death, Code::kPeerLost, 1, Code::kTimeout},  // Its last word may be lost.
    {"a rank that left early", EarlyLeaver, Code::kPeerLost, 1, Code::kPeerLost, true},
    {"all leave at once", [](SimControlJob* job) { LeaveAll(job, 0, false); }, Code::kOk, 0},
    {"all leave, rank 0 last", [](SimControlJob* job) { LeaveAll(job, kMillisecond, false); }, Code::kOk, 0},
    {"all leave, rank 0 first", [](SimControlJob* job) { LeaveAll(job, kMillisecond, true); }, Code::kOk, 0},
};

}  // namespace

std::span<const Story> Stories() { return kStories; }

std::string TimesText(std::vector<Nanoseconds> times) {
  if (times.empty()) return "no times";
  std::ranges::sort(times);
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "the median %.3f s, the longest %.3f s",
                static_cast<double>(times[times.size() / 2]) / kSecond, static_cast<double>(times.back()) / kSecond);
  return text.data();
}

void LeaveAll(SimControlJob* job, Nanoseconds step, bool judge_first) {
  EnterAll(job, 200);
  for (int rank = 0; rank < job->nranks(); ++rank) {
    const int turn = judge_first ? rank : job->nranks() - rank;
    job->At(2 * kMillisecond, [=] { job->Leave(rank); });
    job->At(3 * kMillisecond + turn * step, [=] { job->Close(rank); });
  }
}

void WorkAndLeave(SimControlJob* job, Nanoseconds time) {
  EnterAll(job, 200);
  for (int rank = 0; rank < job->nranks(); ++rank) {
    job->At(kMillisecond + time, [=] { job->Leave(rank); });
    job->At(2 * kMillisecond + time, [=] { job->Close(rank); });
  }
}

}  // namespace annulus
