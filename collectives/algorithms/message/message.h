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

class MessageRunner final : public PipelineRunner {
 public:
  MessageRunner(Endpoint* endpoint, const PlanSettings& settings);

  void Start(const ScheduleParams& params, const Work* work) override;

  // Short cut in place of Start, for `bytes` in host memory over a link that shares memory and has a short path. `call`
  // is the message's identity, as Work::call. Sends or receives the message if that is possible at once; looks for it
  // `polls` times. Returns whether it has; if not, nothing has happened. Nothing allocates.
  bool SendAtOnce(const Call& call, const std::byte* data, size_t bytes);
  bool ReceiveAtOnce(const Call& call, std::byte* data, size_t bytes, int polls);

  static size_t MemoryBytes(const PlanSettings& settings) {
    return sizeof(MessageRunner) + Pipeline::MemoryBytes(WindowSteps(settings));
  }

 private:
  Tag TagOf(const Call& call) const;

  const uint32_t channel_;
  ShortPath* const short_path_;  // Null: messages cannot be moved at once.
  const size_t short_bytes_;     // Largest message that can, in bytes.
  MessageSchedule schedule_;
};

}  // namespace annulus
