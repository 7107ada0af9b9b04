// Job: what MPI keeps for the whole process: whether it is initialised, and what the handles stand for.
//
// Threads: any. A forked child has no part in its parent's job: each function that needs one throws there, and nothing
// of the parent's is freed.
#pragma once

#include <annulus.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "frameworks/mpi/abi.h"
#include "frameworks/mpi/communicator.h"
#include "frameworks/mpi/meeting.h"

namespace annulus_mpi {

// A message under way.
struct Request {
  std::shared_ptr<Communicator> communicator;
  annulus_request_t* request = nullptr;
  std::shared_ptr<annulus_received_t> received;  // What a receive got, once it is done; null for a send.
};

class Job {
 public:
  // The process's.
  static Job& Own();

  // Returns an error's text, or "".
  std::string SetMeeting(const annulus_mpi_meeting* meeting);

  // Joins the job, once. Throws Error; the world then says why at each use.
  void Initialise();
  // Waits for the framework's work, then for calls under way, which are aborted where they do not end in time; leaves.
  // Where the framework says that its program has failed, waits for nothing and aborts.
  void Finalise();
  bool is_initialised() const;
  bool is_finalised() const;

  // Throws Error where the handle stands for none.
  std::shared_ptr<Communicator> CommunicatorOf(Handle handle) const;
  Handle Add(std::shared_ptr<Communicator> communicator);
  // Forgets its requests, too.
  void Free(Handle handle);

  Handle Add(const Request& request);
  Request RequestOf(Handle handle) const;
  void Forget(Handle request);

 private:
  std::shared_ptr<Communicator> Join() const;
  Communicator::Patience AwaitFramework() const;
  void RequireNotForked() const;

  enum class Phase { kBefore, kJoining, kWithin, kAfter };

  mutable std::shared_mutex mutex_;
  std::atomic<Phase> phase_ = Phase::kBefore;  // Written with the mutex held; a forked child may find that locked.
  std::atomic<pid_t> process_ = 0;             // That joined; 0 = none yet.
  annulus_mpi_meeting meeting_{};
  std::map<Handle, std::shared_ptr<Communicator>> communicators_;
  std::map<Handle, Request> requests_;
  Handle next_ = 16;  // Above all constants that are handles of such kinds.
};

}  // namespace annulus_mpi
