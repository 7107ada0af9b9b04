// FoldAgreement: how the ranks of a host agree, once for each communicator, that they do large stream-ordered calls in
// memory of their devices that all reach (fold_program.h). From which call on is the same for all, although each rank
// decides about a call when it submits it, without waiting for the others.
//
// Candidates, calls that may be done so, are numbered as each rank submits them, from 1. Before the ranks have agreed
// they are done in the other way, and each rank tells in the first hop of each (shared_fold.h) how far it is: it has
// memory, it has reached that of all others, or it cannot. When all have reached it in candidate m, calls from
// m + kMostAhead + 1 on are folds. A rank that submits such a call knows that: no rank submits more than kMostAhead
// candidates ahead of those that it has driven.
//
// The thread that submits calls the device's driver: it allocates, exports and maps, before calls whose gates it would
// otherwise be behind. Whoever drives only says and hears.
//
// Threads: Say, Hear and Never by the one that drives; End by any; the rest by those that submit, one at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/reduce/shared_memory.h"

namespace annulus {

class FoldAgreement {
 public:
  static constexpr uint64_t kMostAhead = 16;  // As many calls as may be under way in the streams of a device.
  // Candidates with which a rank tries to reach the others' memory after the driver has failed: something else may be
  // in the way for a while.
  static constexpr int kMostTries = 40;

  enum class State : uint64_t { kNew, kHasMemory, kReachesAll, kCannot };
  // What a rank says. It travels as it is.
  struct Word {
    SharedPlace memory;
    uint64_t number = 0;  // The candidate's number; 0: the rank's call is none.
    uint64_t is_fold = 0;
    State state = State::kNew;
  };

  // `can`: whether this rank could.
  explicit FoldAgreement(bool can) : state_(can ? State::kNew : State::kCannot) {}

  // For those that submit:
  // Waits until this rank knows whether candidate `number` is a fold. Errors: kTimeout; kAborted after End.
  Status Await(uint64_t number, Deadline until);
  bool IsFold(uint64_t number) const;
  // What this rank has to do next, with the first candidate that it submits.
  enum class Task { kNone, kShare, kReach };
  Task NextTask() const;
  // The memory of all ranks, for Task::kReach and later.
  const std::vector<SharedPlace>& places() const { return places_; }
  // The outcome of a task. `memory` is that of kShare.
  void Done(Task task, const Status& status, const SharedPlace& memory = {});

  // Ends all waiting: the communicator has.
  void End();

  // For the one that drives candidate `number`: what this rank says, and what all have said.
  Word Say(uint64_t number) const;
  void Hear(uint64_t number, std::span<const Word> words);
  // The ranks cannot talk about it.
  void Never();

 private:
  void Decide(std::span<const Word> words);

  mutable std::mutex mu_;
  std::condition_variable changed_;
  State state_;
  SharedPlace memory_;
  std::vector<SharedPlace> places_;  // Empty: not all ranks have told theirs. Does not change then.
  uint64_t driven_ = 0;              // The last candidate that was driven here.
  uint64_t first_fold_ = UINT64_MAX;
  int tries_ = 0;    // That have failed,
  std::string why_;  // and why the first one did.
  bool is_decided_ = false;
  bool has_ended_ = false;
};

}  // namespace annulus
