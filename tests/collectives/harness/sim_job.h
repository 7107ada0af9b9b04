// SimJob: the engines of all ranks, and the arbiter, on a simulated world. One collective per job.
//
// Everything above the transports is the real code: schedules, pipelines, engines, arbiter. Time, links, devices and
// the control plane's messages are simulated, so a seed replays a run. Threads: one.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collectives/control/arbiter.h"
#include "collectives/engine/engine.h"
#include "collectives/observe/monitor.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/collectives/harness/parts_job.h"
#include "tests/device/sim_device.h"
#include "transport/sim/sim_world.h"

namespace annulus {

struct SimJobOptions {
  SimOptions world;
  PlanSettings plan;
  Topology topology;  // Its number of ranks may be left out: it is the world's.
  Call call;
  CreatedOp created;              // When call.op is one that a user created.
  uint64_t input_seed = 0;        // 0: the world's.
  std::vector<size_t> tensors;    // Counts of a group's allreduces, of which the call is the first; else empty.
  std::optional<PartsJob> parts;  // When the parts are of different sizes; then the call is the engine's.
  bool on_device = false;
  size_t stream_bytes = SIZE_MAX;  // Size of input and output from which the output is written past the caches.
  bool in_place = false;
  Nanoseconds timeout = kSecond;
  bool awaits_stopped = false;  // Whether the job goes on until ranks that stopped have run again.
};

class SimJob {
 public:
  explicit SimJob(const SimJobOptions& options);
  ~SimJob();

  SimWorld& world() { return world_; }

  // Runs until every rank that still runs has finished or has a verdict. False when one never would: a hang.
  bool Run();

  bool finished(int rank) const { return ranks_[rank].state == State::kFinished; }
  const std::optional<Verdict>& verdict(int rank) const { return ranks_[rank].verdict; }
  // When the rank finished or got its verdict, in virtual time.
  Nanoseconds ended_at(int rank) const { return ranks_[rank].ended_at; }
  Bytes Output(int rank) const;
  Bytes Expected(int rank) const;

 private:
  enum class State { kRunning, kReported, kFinished, kFailed };
  struct Rank {
    std::unique_ptr<SimDevice> device;   // Null: host memory.
    std::unique_ptr<DomainQueue> queue;  // Null: host memory.
    std::unique_ptr<Links> links;
    std::unique_ptr<Monitor> monitor;
    std::unique_ptr<Engine> engine;
    Bytes host_input;  // Unused on a device.
    Bytes host_output;
    std::byte* input = nullptr;
    std::byte* output = nullptr;
    Segments segments;
    uint64_t drives = 0;  // So far.
    State state = State::kRunning;
    Nanoseconds reported_at = 0;
    Nanoseconds heard_at = 0;  // Latest of its own report and of the messages of rank 0.
    Nanoseconds ended_at = 0;
    std::optional<Verdict> verdict;
  };

  void MakeRank(int rank);
  void MakeBuffers(int rank);
  void Connect();
  bool Drive(int rank);
  void Settle(int rank, const Verdict& verdict);
  void SettleAlone(int rank);
  static void EndWork(Rank* rank);
  void Tell(int from, int to, std::function<void()> act);
  void Hear(int rank);
  void ServeArbiter();
  Activity ActivityOf(int rank) const;
  bool Over() const;
  bool InPlace(int rank) const;
  size_t OutputBytes(int rank) const;
  size_t InputOffset(int rank) const;
  size_t OutputOffset(int rank) const;

  Call EngineCall() const;
  Bytes ExpectedOf(const Call& call, const std::vector<Bytes>& inputs, int rank) const;

  const SimJobOptions options_;
  UserReduction created_;
  SimWorld world_;
  Arbiter arbiter_;
  bool told_verdict_ = false;
  Nanoseconds ticking_at_ = 0;
  std::vector<std::function<void()>> messages_;  // What a control message does, by the number that it carries.
  std::vector<Bytes> inputs_;
  std::vector<Rank> ranks_;
};

}  // namespace annulus
