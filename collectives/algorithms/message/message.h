// MessageRunner: one direction of the messages between two ranks, one message at a time. The queues are in the engine's
// Messages.
//
// Threads: as Runner.
#pragma once

#include "collectives/algorithms/message/message_schedule.h"
#include "collectives/algorithms/pipeline_runner.h"
#include "collectives/algorithms/row.h"

namespace annulus {

// Links of messages. The runners are created on first use.
extern const AlgorithmRow kMessageRow;

// Channel of messages, which have links of their own.
inline int MessageChannel(const PlanSettings& settings) { return settings.channels; }

// What became of a message that was to move at once: nothing; it has ended; the link has a copy of it but not yet sent
// all of that, so that it goes on as if started; or it was posted.
enum class AtOnce : uint8_t { kNo, kDone, kBegun, kPosted };

class MessageRunner final : public PipelineRunner {
 public:
  MessageRunner(Endpoint* endpoint, const PlanSettings& settings);

  void Start(const ScheduleParams& params, const Work* work) override;

  // Short cut in place of Start, for `bytes` in host memory over a link that has a short path. `call` is the message's
  // identity, as Work::call. Sends or receives the message if that is possible at once; looks for it `polls` times, or
  // less often where a look is a system call. kNo: nothing has happened. Nothing allocates.
  AtOnce SendAtOnce(const Call& call, const std::byte* data, size_t bytes);
  bool ReceiveAtOnce(const Call& call, std::byte* data, size_t bytes, int polls);
  // Whether SendAtOnce never returns kBegun.
  bool sends_whole() const { return sends_whole_; }

  bool done() const override { return !flushes_ && PipelineRunner::done(); }
  bool WaitsFor(const Endpoint* endpoint) const override { return flushes_ || PipelineRunner::WaitsFor(endpoint); }
  int AwaitedPeer() const override { return flushes_ ? endpoint_->peer() : PipelineRunner::AwaitedPeer(); }

  static size_t MemoryBytes(const PlanSettings& settings) {
    return sizeof(MessageRunner) + Pipeline::MemoryBytes(WindowSteps(settings));
  }

  // Of work that was begun at once, sends what the link still has.
  Status Advance(bool* moved) override;

 private:
  Tag TagOf(const Call& call) const;

  Endpoint* const endpoint_;
  const uint32_t channel_;
  ShortPath* const short_path_;  // Null: messages cannot be moved at once.
  const size_t short_bytes_;     // Largest message that can, in bytes.
  const bool sends_whole_;       // The link shares memory.
  bool flushes_ = false;         // The work was begun at once.
  MessageSchedule schedule_;
};

}  // namespace annulus
