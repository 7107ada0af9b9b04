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

  static size_t MemoryBytes(const PlanSettings& settings) {
    return sizeof(MessageRunner) + Pipeline::MemoryBytes(WindowSteps(settings));
  }

 private:
  MessageSchedule schedule_;
};

}  // namespace annulus
