// Communicator: a group of ranks and its collectives, blocking and asynchronous, in one order; and messages between two
// ranks, which wait for no collective.
//
// A blocking call with nothing queued before it is driven by the calling thread, without a hand-over; everything else
// is driven by one progress thread, which starts with the first asynchronous call. Whoever drives, drives all: messages
// move during collectives.
//
// Threads: all functions may be called from any thread, except that the destructor must be the last call. Calls take
// turns in the order in which they arrive.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <vector>

#include "collectives/comm/call_arguments.h"
#include "collectives/comm/request_table.h"
#include "collectives/comm/setup.h"
#include "collectives/engine/driver.h"
#include "collectives/reduce/operations.h"

namespace annulus {

// What a communicator holds, as annulus_comm_memory tells it; in bytes.
struct MemoryUse {
  size_t staging = 0;
  size_t links = 0;
  size_t work = 0;
  size_t requests = 0;
  size_t peers_mapped = 0;
  size_t total() const { return staging + links + work + requests; }
};

// The latest failure, as annulus_comm_last_error tells it.
struct ErrorRecord {
  Verdict verdict;
  bool failed = false;
};

class Communicator {
 public:
  static Status Create(const Options& options, const Setup::GiveUp& give_up,
                       std::unique_ptr<Communicator>* communicator);

  // Aborts what is pending on this rank, says goodbye and frees everything, requests included. Bounded in time.
  ~Communicator();

  int rank() const { return setup_->rank(); }
  int nranks() const { return setup_->nranks(); }
  int local_rank() const { return setup_->local_rank(); }
  int local_size() const { return setup_->local_size(); }
  const Options& options() const { return setup_->options(); }
  MemoryUse Memory() const;
  int process_rank() const { return setup_->process_rank(); }
  // This host's address, as its peers reach it. Empty when there are no peers.
  const std::string& local_host() const { return setup_->local_host(); }

  const PlanSettings& plan() const { return setup_->plan(); }
  const AlgorithmChoice& choice() const { return engine_.choice(); }
  // Where choice() comes from, in words.
  const std::string& choice_source() const { return choice_source_; }

  // Does the collective and returns its outcome.
  Code Run(const CallArguments& given);

  // Queues the collective. The request must be freed.
  Code Submit(const CallArguments& given, RequestHandle* request);

  // Until GroupEnd, Submit only collects; `request` may then be null. GroupEnd queues what was collected: allreduces of
  // one type and operation as one. *request, if asked for, is done when all of them are.
  Code GroupStart();
  Code GroupEnd(RequestHandle* request);

  // Of the collectives that are submitted from now on. Errors: kInvalidArgument without Options::priorities.
  Code SetPriority(int priority);

  // Waits up to `timeout_ms` (< 0: until the collective's own deadline ends it), and gives the outcome's code.
  // kInProgress when it has not finished. kInvalidArgument, with a message, when it was given before this call, the
  // request's group is open, or the request was freed meanwhile.
  Status Wait(RequestHandle handle, int64_t timeout_ms);

  // Waits for the request to finish, then frees it. kInvalidArgument when it was freed meanwhile.
  Status Free(RequestHandle handle);

  // Lets `change`, which returns a Status, work on the operations that users created.
  template <class Change>
  Code ChangeOperations(Change change) {
    Status status;
    {
      std::lock_guard<std::mutex> lock(mu_);
      status = change(&operations_);
    }
    return status.ok() ? Code::kOk : Refuse(status);
  }

  // Fails everything pending and later on all ranks. Returns at once.
  void Abort();

  // What has happened up to now, in all and with one peer.
  Totals ReadTotals() const;
  PeerTotals ReadPeer(int peer) const;
  // Whether slots for `peer` are written by streaming stores at present; none when it has no link with such slots.
  std::optional<bool> StreamsSlots(int peer) const;
  // Of the TCP links, to one peer or (-1) to all: segments that were sent more than once.
  uint64_t Retransmits(int peer) const;

  // The latest failure. The record never changes; it is kept while the communicator lives, or, when it is only a
  // refused call, until kKeptRefusals more calls were refused.
  static constexpr size_t kKeptRefusals = 64;
  const ErrorRecord& LastError();

  // The verdict that ended this communicator, if one did. With `expected` it may take a moment to arrive.
  std::optional<Verdict> Ended(bool expected = false);

 private:
  friend class Tuner;
  explicit Communicator(std::unique_ptr<Setup> setup);

  // Looks the operation up, and checks.
  Status Complete(CallArguments* arguments);
  Code Refuse(const Status& status);
  MemoryUse FixedMemory() const;
  // All of these need mu_ held.
  // Whether this thread is inside a user's reduction function, where waiting for the driver would last for ever.
  bool InsideReduction() const { return driving_thread_ == std::this_thread::get_id(); }
  void RecordRefusal(const Status& status);
  size_t RequestBytes() const;
  // Whether there is no room for such a request; it is recorded then.
  bool OverBudget(const CallArguments& arguments, Code* code);
  bool Refused(Code* code);
  // Refused, or called by a reduction function, which is an error of that call alone.
  bool MustNotStart(Code* code);
  // A verdict that concerns no collective in particular (a rank died) is recorded with the one it ended here: that
  // which is being driven, or the first in the queue.
  void Fail(const Verdict& verdict);
  // Drives one collective up to its deadline; `segments` is null but for a group.
  Code Drive(const CallArguments& arguments, const Segments* segments, const Call& call, const WaitPolicy& policy,
             std::unique_lock<std::mutex>* lock);
  // The short cut for a small collective that is the latest one again, with other data: most of what surrounds it
  // stays the same. It runs with mu_ held while it goes on at once, which is a microsecond or two.
  bool CanRepeat(const CallArguments& given) const;
  Code Repeat(const CallArguments& given, std::unique_lock<std::mutex>* lock);
  // After a failure: the process may not come to its end.
  void WriteTrace();
  // Counts a collective or message that has ended.
  void CountEnd(const CallArguments& arguments, Code code);
  // Drives messages until `over`, which is asked with mu_ held.
  void DriveMessages(const std::function<bool()>& over, const WaitPolicy& policy, std::unique_lock<std::mutex>* lock);
  void EndDrive(bool ok, const Verdict& verdict, std::unique_lock<std::mutex>* lock);
  Status NeedProgressThread();
  Request* NewRequest(const CallArguments& arguments);
  // Gives the request back if nobody needs it any more.
  void Settle(Request* request);
  void Forget(Request* request);
  // Waits for an own request, and forgets it.
  Code Await(Request* request, std::unique_lock<std::mutex>* lock);
  void Queue(Request* request);
  void QueueGroup();
  void Finish(Request* request, Code code);
  Code Enqueue(const CallArguments& arguments, Request** queued);
  void Post(Request* message);
  Code RunMessage(const CallArguments& arguments, std::unique_lock<std::mutex>* lock);
  void FailMessages(Code code);
  // Makes the thread that drives look at what has changed.
  void CallDriver();
  void ProgressThread();
  // Chooses what to drive next from the queue, which is not empty: the same on all ranks.
  Code Next(std::unique_lock<std::mutex>* lock, Request** next);
  Code Announce(std::unique_lock<std::mutex>* lock, uint64_t* number);
  Request* FirstByPriority() const;
  Request* Queued(uint64_t number) const;
  bool priorities() const { return setup_->options().priorities; }

  std::unique_ptr<Setup> setup_;
  HostDevice host_;
  Engine engine_;
  Messages messages_;
  Driver driver_;
  std::string choice_source_ = "nominal costs";
  Nanoseconds call_timeout_;            // Of each collective. Changed by the Tuner alone.
  const MemoryUse fixed_memory_;        // What does not change while the communicator lives.
  const WaitPolicy background_policy_;  // Of the progress thread: it shares the cores with the computation it overlaps.

  mutable std::mutex mu_;
  std::condition_variable changed_;     // A request is done, or the driver is free, or the queue grew.
  std::atomic<bool> attention_{false};  // A thread that drives messages must look whether it is to go on.
  bool driving_ = false;
  std::thread::id driving_thread_;  // While it is in a collective.
  Call driven_;                     // While driving_; sequence 0 otherwise.
  bool stopping_ = false;
  uint64_t sequence_ = 0;  // Of the latest collective that was driven or, without priorities, queued.
  uint64_t queued_ = 0;    // Collectives so far.
  int priority_ = 0;
  bool group_open_ = false;
  std::vector<Request*> group_;  // Collected since GroupStart.
  Operations operations_;
  std::deque<Request*> queue_;
  std::unordered_set<Request*> unfinished_messages_;
  std::vector<RequestTable::Owned> requests_;
  ErrorRecord fatal_;                // Set once; fatal_.failed says whether.
  std::list<ErrorRecord> refusals_;  // The newest last; never empty.
  std::thread progress_thread_;
};

}  // namespace annulus
