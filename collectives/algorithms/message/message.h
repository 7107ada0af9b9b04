// MessageRunner: one direction of the messages between two ranks, one message at a time. The engine's Messages keeps
// the queues of them.
//
// Threads: as Runner.
#pragma once

#include "collectives/algorithms/message/message_schedule.h"
#include "collectives/algorithms/pipeline_runner.h"
#include "collectives/algorithms/row.h"

namespace annulus {

// The links of messages. Its runners are made when they are first used.
extern const AlgorithmRow kMessageRow;

// The channel of messages: they have links of their own.
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
