// Requests: the requests of one communicator, from when they are made until nobody needs them: what they stand for,
// whether they are done, and who waits for them.
//
// Threads: any; a lock of its own guards them all. A request's arguments, call, number and priority are the business of
// the one who made it until it is queued, and of the one who has the turn (call_queue.h) afterwards.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "collectives/comm/failure_record.h"
#include "collectives/comm/request.h"
#include "collectives/comm/request_table.h"

namespace annulus {

// What a new request has to fit into, in bytes.
struct RequestBudget {
  size_t most = 0;            // Of the whole communicator; 0 = no limit.
  size_t held_elsewhere = 0;  // By the communicator, but for its requests.
  size_t wanted = 0;          // For this request.
};

class Requests {
 public:
  // `table` and `failures` outlive the object. `owner` is whom the table names for their handles.
  Requests(RequestTable* table, Communicator* owner, FailureRecord* failures, int rank, int nranks);
  // Frees all of them. Nobody waits for any.
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  // Of the requests that are made from now on.
  void set_priority(int priority);

  // All three let std::bad_alloc through. A request for one call.
  Request* Make(const CallArguments& arguments);
  // The same for a user, within a budget. `collected`: its group is open, so it is not queued yet. `discarded`: the
  // user does not want it. Errors: kOutOfMemory, which is recorded as a refusal.
  Status MakeWithin(const RequestBudget& budget, const CallArguments& arguments, bool collected, bool discarded,
                    Request** made);
  // One that is done in place of `members`, which are independent allreduces of one type and operation.
  Request* MakeFused(const std::vector<Request*>& members);
  // The group's own, done when all `members` are: at once when there are none.
  Request* MakeGroup(const std::vector<Request*>& members);

  // Their group has ended: they can be waited for.
  void Release(const std::vector<Request*>& collected);

  // The request, its members and its group if it was the last of it, are done. Wakes those who wait.
  void Finish(Request* request, Code code);
  bool IsDone(const Request* request) const;

  // Waits for a request that no user knows, and forgets it. Returns its outcome.
  Code Await(Request* request);
  // As Communicator's. `may_block`: false inside a reduction function, where waiting would last for ever.
  Status Wait(RequestHandle handle, int64_t timeout_ms, bool may_block);
  Status Free(RequestHandle handle, bool may_block);

  size_t MemoryBytes() const;

 private:
  // All with mu_ held.
  Request* Add(const CallArguments& arguments);
  void MarkDone(Request* request, Code code);
  void ForgetIfUnused(Request* request);
  void Forget(Request* request);
  size_t Bytes() const;
  Status Misused(const char* what);

  RequestTable* const table_;
  Communicator* const owner_;
  FailureRecord* const failures_;
  const int rank_;
  const int nranks_;
  mutable std::mutex mu_;
  std::condition_variable changed_;  // A request is done or gone.
  int priority_ = 0;
  std::vector<RequestTable::Owned> requests_;
};

}  // namespace annulus
