// Communicator: a group of ranks with their collectives, blocking and asynchronous, in one order; and messages between
// two ranks, which do not wait for collectives. This class is a facade: it checks calls and leaves the rest to its
// parts. The Dispatcher drives the calls, the CallQueue keeps their order, Requests hold unfinished work, Callbacks
// tell of its end, and the FailureRecord holds the verdict.
//
// Threads: all functions may be called from any thread, but the destructor must be the last call. Calls take turns in
// the order in which they arrive. Each part has its own lock, but Requests and Messages share that of CallQueue. Where
// one lock is taken while another is held, the order is FailureRecord, CallQueue, and then RequestTable or Callbacks.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/calls/agreement.h"
#include "collectives/calls/call_queue.h"
#include "collectives/calls/callbacks.h"
#include "collectives/calls/requests.h"
#include "collectives/comm/dispatcher.h"
#include "collectives/comm/failure_record.h"
#include "collectives/comm/failure_report.h"
#include "collectives/comm/setup.h"
#include "collectives/comm/stream_order.h"
#include "collectives/engine/domain_queues.h"
#include "collectives/reduce/operations.h"
#include "transport/select/select.h"

namespace annulus {

// Memory that a communicator holds, as reported by annulus_comm_memory, in bytes.
struct MemoryUse {
  size_t staging = 0;
  size_t links = 0;
  size_t work = 0;
  size_t requests = 0;
  size_t peers_mapped = 0;
  size_t gpu = 0;
  size_t total() const { return staging + links + work + requests; }
};

// Totals over all links of one transport.
struct TransportTotals {
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t retransmits = 0;
  uint64_t reconnects = 0;
  uint64_t bytes_sent_again = 0;
  uint64_t read_bytes = 0;
  uint64_t landed_bytes = 0;
};

class Communicator {
 public:
  // Meets the other ranks of `membership`, among which this one is options.rank. `resources` outlive the communicator.
  static Status Create(const Options& options, const Membership& membership, const Resources& resources,
                       const Setup::Patience& patience, std::unique_ptr<Communicator>* communicator);
  // The same for all ranks of the job.
  static Status Create(const Options& options, const Resources& resources, std::unique_ptr<Communicator>* communicator);
  // Aborts pending work on this rank, calls what callbacks remain, and leaves. Not in a callback.
  ~Communicator();

  int rank() const { return setup_->rank(); }
  int nranks() const { return setup_->nranks(); }
  int local_rank() const { return setup_->local_rank(); }
  int local_size() const { return setup_->local_size(); }
  const Options& options() const { return setup_->options(); }
  const Resources& resources() const { return setup_->resources(); }
  MemoryUse Memory() const;
  const Membership& membership() const { return setup_->membership(); }
  // Address of this host as its peers reach it. Empty when there are no peers.
  const std::string& local_host() const { return machine().local_host; }
  const MachineUse& machine() const { return setup_->machine(); }
  uint64_t job() const { return setup_->job(); }
  // Number of splits so far, this one included.
  uint32_t CountSplit() { return ++splits_; }

  // Names the links, as DeviceExports::TellWay takes them.
  const void* links() const { return setup_->reactor(); }
  TransportList transports() const { return setup_->resources().transports; }
  const PlanSettings& plan() const { return setup_->plan(); }
  const Topology& topology() const { return setup_->topology(); }
  // As Setup::Refusal.
  std::string Refusal(int peer) const { return setup_->Refusal(peer); }
  const AlgorithmChoice& choice() const { return dispatcher_.choice(); }
  // Source of choice(), in words.
  const std::string& choice_source() const { return choice_source_; }

  // Measures the links, or reads `file`, and uses the result for later choices (tuner.h). Called on all ranks alike,
  // before anyone else has the communicator. Errors: as Tuner::Tune.
  Status Tune(const std::string& file, const Setup::GiveUp& give_up);

  // Functions for calls return OK, the reason of a refusal that concerns this call alone, or a Status without a
  // message: then the communicator has ended, and verdict() says why.

  // As Dispatcher::RunAgain. To be tried before Run.
  std::optional<Code> RunAgain(const CallArguments& given) {
    return checks_calls_ ? std::nullopt : dispatcher_.RunAgain(given);
  }
  // As Dispatcher::ExchangeAtOnce. To be tried before RunExchange.
  Dispatcher::Exchanged ExchangeAtOnce(const CallArguments& send, const CallArguments& recv) {
    return checks_calls_ ? Dispatcher::Exchanged::kNothing : dispatcher_.ExchangeAtOnce(send, recv);
  }
  // As Dispatcher::SubmitAgain. To be tried before Submit.
  bool SubmitAgain(std::span<const CallArguments> given, void* handle) {
    return !checks_calls_ && dispatcher_.SubmitAgain(given, handle);
  }
  // As Dispatcher::WaitAgain. To be tried before Wait.
  std::optional<Code> WaitAgain(RequestHandle handle, int64_t timeout_ms) {
    return dispatcher_.WaitAgain(handle, timeout_ms);
  }
  // As Requests::FreeDone. To be tried before Free.
  bool FreeDone(RequestHandle handle) { return requests_.FreeDone(handle); }
  // Runs the call and returns its outcome.
  Status Run(const CallArguments& given) { return AgreesFirst({&given, 1}) ? RunAgreed(given) : RunNow(given); }
  // The same without an agreement before it, and with the verdict's message and the rank at fault.
  Status RunInWords(const CallArguments& given);
  // Runs a send and a receive together, and returns the outcome of both. *blames_recv: a refusal is about the receive.
  Status RunExchange(const CallArguments& send, const CallArguments& recv, bool* blames_recv);

  // Queues one call or a group of them, all or none. Allreduces of a group that share a type and operation are queued
  // as one. `give`, if not null, gets the request before anything is queued; the request is done when all calls are,
  // and must be freed. If one call of a group is refused, *refused is its index, and the group's size for other
  // failures.
  using Give = std::function<void(RequestHandle request)>;
  Status Submit(std::span<const CallArguments> given, const Give& give, size_t* refused) {
    // Before the lock, whose owner may wait for a call that waits for this thread.
    if (dispatcher_.IsInsideReduction()) return CheckMayStart();
    const std::unique_lock<std::mutex> order = streams_.Lock(given);
    return AgreesFirst(given) ? SubmitAgreed(given, give, refused) : SubmitNow(given, give, refused, nullptr);
  }

  // The reason of a refusal. If the communicator has ended, that is the reason instead.
  Status Refuse(const Status& status);
  // The same for calls made together, which were refused before they came here. Where ranks agree first, the others
  // are told. Of a call of unknown kind, which may be no collective, they are not. With `waits`, returns when they are.
  Status RefuseCalls(const Status& status, std::span<const CallArguments> calls, bool waits);

  // Waits up to `timeout_ms` (-1: until the end), and returns the request's outcome, or kInProgress when it has none
  // yet. *failed becomes what failed. Returns kInvalidArgument, with a message, when the request was freed meanwhile.
  Status Wait(RequestHandle handle, int64_t timeout_ms, FailedCall* failed);

  // Waits for the request to finish, then frees it. Returns kInvalidArgument when it was freed meanwhile.
  Status Free(RequestHandle handle);

  // Calls `change`, which returns a Status, with the user-defined operations.
  template <class Change>
  Status ChangeOperations(Change change) {
    Status status;
    {
      std::lock_guard<std::mutex> lock(operations_mu_);
      status = change(&operations_);
    }
    ReleaseOperations();
    return status.ok() ? status : Refuse(status);
  }

  // Fails all pending and later work on all ranks. Returns at once.
  void Abort(const std::string& reason = "");

  // Counters up to now, in total and for one peer.
  Totals ReadTotals() const;
  PeerTotals ReadPeer(int peer) const;
  // The link of the first channel to a peer, for people; "" when there is none. Not while another thread drives.
  std::string DescribeLink(int peer) const;
  // Whether slots for `peer` are currently written by streaming stores; nothing when it has no link with such slots.
  std::optional<bool> StreamsSlots(int peer) const;
  // Retransmissions on the links to one peer: what was sent again because the network lost or delayed it.
  uint64_t Retransmits(int peer) const;
  // Totals over all links of one of transports().
  TransportTotals ReadTransport(const TransportInfo& transport) const;

  // The verdict that ended the communicator, which never changes; null while there is none.
  const Verdict* verdict();
  // Whether the calling thread is in a callback of this communicator.
  bool IsInCallback() const { return callbacks_.IsThisThread(); }
  // Whether the calling thread is in a reduction function that this communicator called.
  bool IsInsideReduction() const { return dispatcher_.IsInsideReduction(); }

  // Returns the reason why `ranks` cannot all go on together, if there is one; as Control::Parted.
  std::optional<Verdict> Parted(const std::vector<int>& ranks, bool expected);

 private:
  Communicator(std::unique_ptr<Setup> setup, std::unique_ptr<DomainQueues> queues);

  // Looks up the operation and the domains of the buffers, and checks the arguments.
  // *keep keeps the operation while it is used.
  Status Complete(CallArguments* arguments, std::shared_ptr<const UserReduction>* keep);
  // Finds the domains of both buffers, and gets these ready.
  Status PrepareBuffers(CallArguments* arguments);
  // The same, and asks whether their devices still are what they were; if not, the communicator ends.
  Status PrepareDevices(CallArguments* arguments);
  // Not OK when the communicator has ended, or is called from a reduction function.
  Status CheckMayStart();
  // Whether the ranks agree on these calls before any data moves.
  bool AgreesFirst(std::span<const CallArguments> calls) const {
    return nranks() > 1 && std::ranges::any_of(calls, [this](const CallArguments& call) {
             return (checks_calls_ || call.agree_first()) && call.kind != CollectiveKind::kNone &&
                    !IsMessage(call.kind);
           });
  }
  Status RunNow(const CallArguments& given);
  Status RunAgreed(const CallArguments& given);
  // Submit, with an agreement that holds the collectives, and is queued where it succeeds; null: with none.
  Status SubmitNow(std::span<const CallArguments> given, const Give& give, size_t* refused, Request* agreement);
  Status SubmitGroup(std::span<const CallArguments> given, const Give& give, size_t* refused, Request* agreement);
  Status SubmitAgreed(std::span<const CallArguments> given, const Give& give, size_t* refused);
  // Takes part in an agreement on calls that this rank refuses.
  void JoinAgreement(Request* agreement, std::span<const CallArguments> calls, const CallDescription& refusal,
                     bool waits);
  // With an agreement, which is queued too, only messages are: it holds the rest.
  void QueueAll(std::span<Request* const> requests, Request* agreement);
  // Combines the requests of a group's calls, and returns what is to be queued.
  std::vector<Request*> Arrange(const std::vector<Request*>& made, Requests::Unqueued* unqueued);
  Status StartThreads(std::span<const CallArguments> calls);
  void OpenStreams();
  // Queues what was enqueued, and puts the rest of it into its stream; callbacks come after that.
  void QueueInStream(std::span<Request* const> queued, Request* agreement, StreamOrder::Call* call);
  // Puts the rest of what is queued into its stream. There is no way back: failures end the communicator.
  void FinishInStream(StreamOrder::Call* call);
  // Abort where nobody would take an exception.
  void AbortFor(const std::string& why);
  void AbortWithoutMemory();
  // Refuses calls that are not captured and could wait for a launch that waits for them.
  Status CheckBesideGraphs(std::span<const CallArguments> calls, bool agrees_first);
  // Calls in graphs. Captures calls that were staged, each with what keeps its operation.
  Status Capture(std::span<const CallArguments> calls, std::span<std::shared_ptr<const UserReduction>> keeps,
                 const Give& give, const Request* agreement, StreamOrder::Call* in_stream);
  // As GraphReplays::Config.
  void Replay(const GraphReplays::Captured& captured);
  void ReplayWithMemory(const GraphReplays::Captured& captured);
  void ForgetCaptured(const GraphReplays::Captured& captured);
  // Waits for requests; null inside a reduction function, where waiting would never end.
  Requests::AwaitEnd AwaitEnd();
  // Calls the release functions of operations that nothing uses any more.
  void ReleaseOperations();
  // The timeout of the longest of these calls.
  Nanoseconds LongestTimeout(std::span<const CallArguments> calls) const;
  // When it must have found a place in its stream.
  Deadline PlaceDeadline(std::span<const CallArguments> calls) const { return DeadlineAfter(LongestTimeout(calls)); }
  MemoryUse FixedMemory() const;
  RequestBudget BudgetFor(std::span<const CallArguments> calls) const;

  const std::unique_ptr<Setup> setup_;
  const std::unique_ptr<DomainQueues> queues_;
  CallQueue queue_;
  FailureReport report_;
  FailureRecord failures_;
  Callbacks callbacks_;
  Requests requests_;
  StreamOrder streams_;
  std::mutex operations_mu_;
  Operations operations_;
  Dispatcher dispatcher_;
  std::string choice_source_ = "nominal costs";
  std::atomic<uint32_t> splits_ = 0;
  const bool checks_calls_;       // Ranks agree on every collective first.
  const MemoryUse fixed_memory_;  // The part that does not change while the communicator lives.
};

}  // namespace annulus
