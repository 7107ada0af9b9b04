#include "tests/collectives/control/sim_control_job.h"

#include <utility>

#include "base/check.h"
#include "collectives/control/arbiter_text.h"
#include "collectives/control/control.h"
#include "collectives/control/control_judge.h"
#include "collectives/control/control_member.h"

namespace annulus {

SimControlJob::SimControlJob(uint64_t seed, int nranks, const std::vector<SimCut>& cuts)
    : world_(seed, nranks, cuts), ranks_(nranks) {}

SimControlJob::~SimControlJob() = default;

void SimControlJob::Open(int rank) {
  Rank& own = ranks_[rank];
  if (own.ended) return;
  ControlRoleConfig config;
  config.rank = rank;
  config.nranks = nranks();
  config.net = world_.net(rank);
  config.activity = &own.activity;
  config.heard_at = &own.heard_at;
  config.path_is_silent = &own.path_is_silent;
  config.conclude = [this, rank](const Verdict& verdict) { Conclude(rank, verdict); };
  if (rank == 0) own.role = std::make_unique<ControlJudge>(config);
  if (rank != 0) own.role = std::make_unique<ControlMember>(config);
  ANNULUS_CHECK(own.role->Open(world_.Connections(rank)).ok());
}

void SimControlJob::Enter(int rank, const Call& call) {
  world_.WhenAwake(rank, [this, rank, call] {
    if (Works(rank)) ranks_[rank].activity.Enter(call);
  });
}

void SimControlJob::Leave(int rank) {
  world_.WhenAwake(rank, [this, rank] {
    if (Works(rank)) ranks_[rank].activity.Leave();
  });
}

void SimControlJob::Report(int rank, const Status& failure, const Call& call, Deadline until) {
  Rank& own = ranks_[rank];
  if (clock().now() < world_.awake_at(rank))
    return At(world_.awake_at(rank), [=, this] { Report(rank, failure, call, until); });
  if (!Works(rank) || own.verdict || own.reported_at != 0) return;
  own.reported_at = clock().now();
  own.until = until;
  own.role->Report(failure, call);
  AwaitVerdict(rank);
}

void SimControlJob::AwaitVerdict(int rank) {
  Rank& own = ranks_[rank];
  if (own.verdict || !Works(rank)) return;
  // As Control::Report does after a pause.
  const Nanoseconds awake_at = world_.awake_at(rank);
  if (clock().now() < awake_at) return At(awake_at + Control::kVerdictGrace, [this, rank] { AwaitVerdict(rank); });
  const Deadline until = Control::VerdictDue(own.reported_at, own.heard_at.load(), own.until);
  if (clock().now() < until) return At(until, [this, rank] { AwaitVerdict(rank); });
  const Verdict alone = UnansweredVerdict(rank, own.path_is_silent.load());
  Conclude(rank, alone);
  if (own.role != nullptr) own.role->Settle(alone);
}

void SimControlJob::Abort(int rank) {
  if (clock().now() < world_.awake_at(rank)) return At(world_.awake_at(rank), [this, rank] { Abort(rank); });
  if (!Works(rank) || ranks_[rank].verdict) return;
  const Verdict aborted = AbortVerdict(rank);
  ranks_[rank].role->Settle(aborted);
  Conclude(rank, aborted);
}

void SimControlJob::Conclude(int rank, const Verdict& verdict) {
  Rank& own = ranks_[rank];
  own.told.push_back(verdict);
  if (own.verdict) return;
  own.verdict = verdict;
  own.verdict_at = clock().now();
  if (leaves_at_verdict_) At(clock().now(), [this, rank] { Close(rank); });
}

void SimControlJob::Close(int rank) {
  Rank& own = ranks_[rank];
  if (clock().now() < world_.awake_at(rank)) return At(world_.awake_at(rank), [this, rank] { Close(rank); });
  if (!Works(rank)) return;
  own.closing = true;
  own.closing_since = clock().now();
  own.role->Depart([this, rank] { At(clock().now(), [this, rank] { End(rank); }); });
  LimitClosing(rank);
}

void SimControlJob::LimitClosing(int rank) {
  At(clock().now() + Control::kCloseGrace, [this, rank] {
    if (ranks_[rank].ended) return;
    ranks_[rank].role->AwaitsReturn() ? LimitClosing(rank) : End(rank);
  });
}

void SimControlJob::Kill(int rank) { End(rank); }

void SimControlJob::End(int rank) {
  Rank& own = ranks_[rank];
  if (own.ended) return;
  own.ended = true;
  own.ended_at = clock().now();
  own.role.reset();
  world_.EndProcess(rank);
}

void SimControlJob::Run(Nanoseconds limit) {
  while (clock().now() < limit && clock().RunNext()) {
  }
}

}  // namespace annulus
