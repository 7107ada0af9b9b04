// Communicator: a group of ranks and its collectives, blocking and asynchronous, in one order; and messages between two
// ranks, which wait for no collective. A facade: it checks calls, and leaves the rest to its parts: the Dispatcher has
// them driven, the CallQueue keeps their order, Requests and Group what is not done yet, the FailureRecord what failed.
//
// Threads: all functions may be called from any thread, except that the destructor must be the last call. Calls take
// turns in the order in which they arrive. Each part has a lock of its own; where one is taken while another is held,
// the order is Requests, FailureRecord, CallQueue.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "collectives/comm/call_queue.h"
#include "collectives/comm/dispatcher.h"
#include "collectives/comm/failure_record.h"
#include "collectives/comm/failure_report.h"
#include "collectives/comm/group.h"
#include "collectives/comm/requests.h"
#include "collectives/comm/setup.h"
#include "collectives/reduce/operations.h"
#include "transport/select/select.h"

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

// What passed over all links of one transport.
struct TransportTotals {
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t retransmits = 0;
};

class Communicator {
 public:
  // `resources` outlive the communicator.
  static Status Create(const Options& options, const Resources& resources, const Setup::GiveUp& give_up,
                       std::unique_ptr<Communicator>* communicator);

  int rank() const { return setup_->rank(); }
  int nranks() const { return setup_->nranks(); }
  int local_rank() const { return setup_->local_rank(); }
  int local_size() const { return setup_->local_size(); }
  const Options& options() const { return setup_->options(); }
  const Resources& resources() const { return setup_->resources(); }
  MemoryUse Memory() const;
  int process_rank() const { return setup_->process_rank(); }
  // This host's address, as its peers reach it. Empty when there are no peers.
  const std::string& local_host() const { return setup_->local_host(); }

  TransportList transports() const { return setup_->resources().transports; }
  const PlanSettings& plan() const { return setup_->plan(); }
  const AlgorithmChoice& choice() const { return dispatcher_.choice(); }
  // Where choice() comes from, in words.
  const std::string& choice_source() const { return choice_source_; }

  // Measures the links, or reads `file`, and chooses by it from then on (tuner.h). On all ranks alike, before anybody
  // else has the communicator. Errors: as Tuner::Tune.
  Status Tune(const std::string& file, const Setup::GiveUp& give_up);

  // Does the collective and returns its outcome.
  Code Run(const CallArguments& given);
  // The same, with the words of the failure and the rank at fault.
  Status RunInWords(const CallArguments& given);

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
      std::lock_guard<std::mutex> lock(operations_mu_);
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
  // Of the links to one peer: what the network lost or delayed, so that it was sent again.
  uint64_t Retransmits(int peer) const;
  // Of all links of one of transports().
  TransportTotals ReadTransport(const TransportInfo& transport) const;

  // As FailureRecord::Latest.
  const ErrorRecord& LastError() { return failures_.Latest(); }

  // The verdict that ended this communicator, if one did. With `expected` it may take a moment to arrive.
  std::optional<Verdict> Ended(bool expected = false);

 private:
  explicit Communicator(std::unique_ptr<Setup> setup);

  // Looks the operation up, and checks.
  Status Complete(CallArguments* arguments);
  // Refuses the call, unless the communicator has ended, which is then the reason.
  Code Refuse(const Status& status);
  // Whether it has ended, or is called by a reduction function, which is an error of that call alone.
  bool MustNotStart(Code* code);
  MemoryUse FixedMemory() const;
  RequestBudget BudgetFor(const CallArguments& arguments) const;

  const std::unique_ptr<Setup> setup_;
  CallQueue queue_;
  FailureReport report_;
  FailureRecord failures_;
  Requests requests_;
  Group group_;
  std::mutex operations_mu_;
  Operations operations_;
  Dispatcher dispatcher_;
  std::string choice_source_ = "nominal costs";
  const MemoryUse fixed_memory_;  // What does not change while the communicator lives.
};

}  // namespace annulus
