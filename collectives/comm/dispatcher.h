// Dispatcher: has the calls of one communicator driven. A blocking call with nothing queued before it is driven at once
// by the calling thread. Other calls are queued, and driven in turn by the threads that wait for them. What these leave
// alone is driven by one progress thread, which starts with the first asynchronous call. The driving thread drives
// everything: messages move during collectives.
//
// Threads: any, with two rules: the destructor is the last call, and set_choice and set_call_timeout are called before
// the user has the communicator. The members that move data belong to the thread that has the turn (call_queue.h).
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "collectives/calls/call_queue.h"
#include "collectives/calls/requests.h"
#include "collectives/comm/call_staging.h"
#include "collectives/comm/failure_report.h"
#include "collectives/comm/setup.h"
#include "collectives/engine/domain_queues.h"
#include "collectives/engine/driver.h"

namespace annulus {

struct DispatcherConfig {  // All outlive the dispatcher.
  Setup* setup = nullptr;
  CallQueue* queue = nullptr;
  FailureRecord* failures = nullptr;
  FailureReport* report = nullptr;
  Requests* requests = nullptr;
  DomainQueues* queues = nullptr;
  std::function<void()> ended;   // Called after turns that may have ended queued calls, with no lock held.
  std::function<void()> failed;  // Called when the communicator has failed, before devices are drained; must not block.
};

class Dispatcher {
 public:
  explicit Dispatcher(const DispatcherConfig& config);
  ~Dispatcher() { Close(); }
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // Short cut for a small collective that repeats one of the latest few with other data, so that most of the
  // bookkeeping stays the same, and for a small message that can be sent or received at once. Holds the queue's lock
  // while the call can proceed at once, which takes a microsecond or two, and as long as its data takes to be copied.
  // Does nothing, and returns nothing, for any other call.
  std::optional<Code> RunAgain(const CallArguments& given) {
    return IsMessage(given.kind) ? RunMessageAtOnce(given) : RunCallAgain(given);
  }
  // The same for two messages that are made together and have no options. Sends a small one at once, if the receive is
  // good too, and looks for the other's; returns what has happened.
  enum class Exchanged { kNothing, kSent, kBoth };
  Exchanged ExchangeAtOnce(const CallArguments& send, const CallArguments& recv);
  // Has both driven, a send and a receive, and returns when both have ended, as Run.
  using Exchange = std::array<CallArguments, 2>;
  Status RunExchange(const Exchange& calls);
  // RunAgain in two steps, each within one lock. The first queues such a call, and begins it if nothing is queued
  // before it, or moves or queues a few messages. `handle`, if not null, is where the user's pointer for the request's
  // handle is, which is set before a callback may look at it. Returns whether it did; if not, the pointer is undefined.
  bool SubmitAgain(std::span<const CallArguments> group, void* handle) {
    if (group.size() == 1 && IsMessage(group.front().kind)) return SubmitMessage(group.front(), handle);
    return !group.empty() && SubmitCallsAgain(group, handle);
  }
  // The second drives a call that is next in the queue for up to `timeout_ms` (-1: without a limit), and returns kOk if
  // it has ended well, kInProgress when the time is over, and nothing where another wait has to look closer. It takes
  // the lock; Requests::HasEndedWell knows more ends without it.
  std::optional<Code> WaitAgain(RequestHandle handle, int64_t timeout_ms);

  // Has the call driven, and returns its outcome, as FailureRecord's. The arguments are complete and valid.
  Status Run(const CallArguments& arguments);

  // Notes for the timeline the labels of messages that are queued next. Lets std::bad_alloc through.
  void NoteLabels(std::span<Request* const> requests);
  // Describes `calls` in the agreement's request, which is to hold those of their requests that are collectives. Lets
  // std::bad_alloc through.
  void Hold(Request* agreement, std::span<const CallArguments> calls, std::span<Request* const> requests);
  // Gives the agreement on calls that this rank refuses the limit and priority that it has on ranks that hold them.
  void HoldNone(Request* agreement, std::span<const CallArguments> calls) const;
  // Queues a request for which there is room, for the threads that wait for it and the progress thread, which must have
  // started. Needs no memory. Ends the request when the dispatcher has stopped.
  void Queue(Request* request);
  // Drives what is queued until the request is done or, if that is earlier, up to the deadline; or waits while another
  // thread does. Looks once in any case. Where calls go by priority the progress thread drives, and this waits.
  void Help(Request* request, Deadline until);
  // Starts the progress thread if it is not running. Errors: kSystem.
  Status StartProgressThread();
  // Aborts pending work on this rank and ends the progress thread. What is started later fails.
  void Stop();
  // The same, and says goodbye, drains devices and closes the links. Idempotent. Bounded in time.
  void Close();

  // Whether this thread is inside a user-defined reduction, where waiting for the driver would never end.
  bool IsInsideReduction() const { return queue_->IsDrivenByThisThread(); }

  // Ends current and later work, on this rank alone.
  void Interrupt() { driver_.Interrupt(); }

  const AlgorithmChoice& choice() const { return engine_.choice(); }
  void set_choice(const AlgorithmChoice& choice) { engine_.set_choice(choice); }
  // Whether a device may do this call in memory that the ranks share (algorithms/shared_fold). If so, its buffers are
  // not staged.
  bool MayBeOneFold(const CallArguments& a) const;
  // Time limit of each collective.
  Nanoseconds call_timeout() const { return calls_.timeout; }
  void set_call_timeout(Nanoseconds timeout) { calls_.timeout = timeout; }

  // Memory in bytes: of the engine, which does not change, and of the messages so far.
  size_t EngineBytes() const { return engine_.MemoryBytes(); }
  size_t MessagesBytes() const { return messages_.MemoryBytes(); }
  // Has the communicator stage small calls on devices, in up to `most_bytes` of memory. Before it is used.
  void OpenStaging(size_t most_bytes);
  size_t StagingBytes() const { return staging_.bytes(); }
  // What messages that no receive asks for may take, at most.
  size_t RoomToHoldBytes() const { return messages_.RoomToHoldBytes(); }

 private:
  // How to drive: how to wait, and when to stop.
  struct Manner {
    const WaitPolicy& policy;
    Patience patience;
  };

  // Most messages of a group that is submitted within one lock, and most bytes that it sends: some 30 us.
  static constexpr size_t kMostAtOnce = 256;
  static constexpr size_t kMostBytesAtOnce = size_t{256} * 1024;

  // Whether calls may be submitted by a short cut: they have no options that the long way must look at, no memory is
  // counted, and the threads that they need run.
  bool MaySubmitAgain(std::span<const CallArguments> given) const;
  bool MaySubmitOne(const CallArguments& given) const {
    return given.options == nullptr ? MaySubmitAgain() : MaySubmitAgain({&given, 1});
  }
  // The part that does not depend on the calls.
  bool MaySubmitAgain() const {
    return setup_->options().memory_bytes == 0 && progress_.has_started.load(std::memory_order_relaxed);
  }
  bool CanRunAgain(const CallArguments& given);
  // The same for a queued call, whose buffers were looked up before: asks no driver of a device.
  bool CanDriveAgain(const Request& request);
  // The same for one that SubmitAgain has queued.
  bool CanStillDriveAgain(const Request& request) {
    return !failures_->ended() && driver_.MayRepeat() && engine_.RepeatsPlan(request.plan);
  }
  // The part that all have.
  bool RepeatsRecent(const CallArguments& given);
  // Whether the call equals one of the latest few but for its buffers, where it is no allreduce.
  bool EqualsRecent(const CallArguments& given);
  // The rest of CanRunAgain where calls may overtake each other or buffers may lie elsewhere.
  bool CanRunAgainHere(const CallArguments& given) const;
  Status RunMessage(const CallArguments& arguments);
  // SubmitAgain for what is not one message.
  bool SubmitCallsAgain(std::span<const CallArguments> group, void* handle);
  // SubmitAgain for a group of allreduces that can be done as one. They need not repeat any.
  bool SubmitAsOne(std::span<const CallArguments> given, void* handle);
  // The same for a group of other collectives, which go one after the other, and for one collective that repeats
  // nothing. They are queued, as Queue does.
  bool SubmitInTurn(std::span<const CallArguments> given, void* handle);
  bool MayGoInTurn(const CallArguments& given, bool is_alone) const;
  // RunAgain for collectives, and for messages.
  std::optional<Code> RunCallAgain(const CallArguments& given);
  std::optional<Code> RunMessageAtOnce(const CallArguments& given);
  // The same for one that is to be queued. Returns whether it has ended.
  bool EndsAtOnce(Request* message);
  // SubmitAgain and WaitAgain for messages, and groups that may have some.
  bool SubmitMessage(const CallArguments& given, void* handle);
  bool SubmitMessages(std::span<const CallArguments> given, void* handle);
  bool MaySubmitNow(const CallQueue::Turn& turn) const {
    return !turn.is_stopping() && turn.MayDriveMessages() && !failures_->ended() && driver_.MayMoveAtOnce();
  }
  // Sends it at once if that is possible, else queues it. Returns whether it has ended; the caller marks it as done.
  bool StartSend(CallQueue::Turn* turn, Request* request, bool awaited = false);
  // RunExchange's parts: starts both within one lock, and looks for the end of one as WaitAgain does.
  bool StartsBoth(Request* send, Request* recv);
  void LookFor(Request* request);
  // Whether a wait that has looked so often for the request, without success, should look again at once.
  bool MayLookOn(const CallQueue::Turn& turn, const Request& request, int looks) const;
  // Moves a message of those arguments that is not queued, if it is first (Driver::MoveAtOnce).
  AtOnce MoveFirst(CallQueue::Turn* turn, const CallArguments& given, const Message& message, int polls);
  // The same for a send that is only being started (Driver::StartAtOnce). Not lent if it can be copied whole, unless it
  // is `awaited` at once: others may be started behind it, and would have to wait for the peer to read it.
  AtOnce StartFirst(const CallQueue::Turn& turn, const CallArguments& given, const Message& message, bool awaited);
  // MoveFirst for a request that may be posted. One that has ended has left the queue.
  AtOnce MovePosted(CallQueue::Turn* turn, Request* request, int polls);
  // For a message: the receive that is posted first, if that is another one, or null. Whoever waits looks for it too:
  // its sender may come to read this rank's data only then, and the awaited message may come behind it.
  static Request* AwaitedMeanwhile(const CallQueue::Turn& turn, const Request& request);
  // Whether other messages are posted than the request and those of that group, if any, that have to be driven
  // meanwhile: sends, or many receives. A few receives are left for the few microseconds that looks take.
  static bool HasOthersPosted(const CallQueue::Turn& turn, const Request* request);
  // Their part for a collective. What repeats nothing is planned.
  std::optional<Code> WaitCollectiveAgain(CallQueue::Turn* turn, Request* request, int64_t timeout_ms);
  // Whether the communicator has ended, though nobody may have noted that yet: then the long way tells how.
  bool HasEnded() const { return failures_->ended() || driver_.Stopped(); }
  // Whether a call that is next in the queue may be driven by whoever waits for it: it waits for no stream or device.
  bool MayDriveNow(const Request& request) const;
  // Ends it if it repeats a recent one and all that it needs is there. *resumes: it has begun, for DriveOn.
  bool EndsNow(const Request& request, bool* resumes);
  // Drives what did not end so, or is to be planned. Gives the lock back meanwhile; `awaited` stays valid.
  std::optional<Code> DriveOn(CallQueue::Turn* turn, const Request& request, Request* awaited, bool resumes,
                              Deadline until);
  // The same for a group whose calls are next in the queue: ends them, up to what holds the lock for some 30 us.
  // Returns kOk when all have ended well. *is_over: it need not go on.
  std::optional<Code> WaitMembersAgain(CallQueue::Turn* turn, Request* group, Deadline until, bool* is_over);
  static bool IsNextMember(const Request* next, const Request& group) {
    return next != nullptr && next->group == &group && !next->is_fused();
  }
  bool MayDriveMember(CallQueue::Turn* turn, const Request& member);
  // BeginNext where that may be a call of the group.
  void BeginNextOf(CallQueue::Turn* turn, const Request* group);
  // Begins the next call in the queue, if that is like those of SubmitAgain and none has begun.
  void BeginNext(CallQueue::Turn* turn);
  // Looks for the message of a request once, or for those of a group. kDone: the request has ended well. kNever:
  // another wait has to look closer.
  AtOnce LookForMessages(CallQueue::Turn* turn, Request* request, int polls);
  // MovePosted for messages of a group, in their order, up to the first that does not end. Sets *any if any has.
  AtOnce MovePostedOf(CallQueue::Turn* turn, const Request& group, int polls, bool* any);
  // The end of a message of RunMessageAtOnce.
  Code EndAtOnce(CallQueue::Turn* turn, const CallArguments& given);
  // RunMessageAtOnce for one that may end later: the link takes a copy, but may not be rid of it at once, or lends it.
  std::optional<Code> SendAtOnce(CallQueue::Turn* turn, const CallArguments& given);
  // Looks for the end of a message that was begun at once, for about as long as it takes, and gives the turn back.
  void AwaitBegun(CallQueue::Turn* turn, const Request& request);
  // Ends such messages, as far as they have come. Returns whether any has ended.
  bool EndBegun(CallQueue::Turn* turn, int polls) { return messages_.has_active() && EndAnyBegun(turn, polls); }
  bool EndAnyBegun(CallQueue::Turn* turn, int polls);
  // Whether a wait looks for messages of that peer and size: it shares memory, and they may be one slice.
  bool LooksFor(int peer, size_t bytes) const;
  // A short form of the checks of a message. False for some rare good ones too.
  bool IsGoodMessage(const CallArguments& given) const;
  // Number of times that a message looks at once for the one from its peer: for about half a microsecond, which is what
  // an answer takes. A rank that shares its core with its peer looks only once.
  int MessagePolls() const { return setup_->wait_policy().spin == 0 ? 1 : 256; }
  // The same for the end of one that was begun: such a poll moves the link.
  int BegunPolls() const { return setup_->wait_policy().spin == 0 ? 1 : 8; }
  // Number of such looks in a row, with the lock given back in between and only while nothing else is to be driven: 4
  // us or so, and more for a large message. That is what an answer takes from a far processor; the long way costs more.
  static constexpr int kMostMessageLooks = 8;
  static constexpr size_t kBytesPerLook = 4096;
  static constexpr size_t kMostBytesLookedFor = size_t{64} * 1024;
  static constexpr size_t kMostLentBytesLookedFor = size_t{256} * 1024;
  int MessageLooks(int peer, size_t bytes) const {
    if (peer < 0 || setup_->wait_policy().spin == 0 || !LooksFor(peer, bytes)) return 1;
    return kMostMessageLooks + static_cast<int>(bytes / kBytesPerLook);
  }
  // The same for a request; for a group the most that any of its messages has, and 1 if one of them has only that.
  int MessageLooksFor(const CallQueue::Turn& turn, const Request& request) const;
  Request* QueueMessage(const CallArguments& arguments);
  // Marks the request as done, and tells those who wait.
  void Finish(Request* request, Code code);
  // The same for a queued call that has been driven, which also leaves the queue. An agreement lets go what it holds,
  // if the ranks agree; else it refuses that.
  void EndQueued(Request* request, Code code);
  // Ends a request that will not be driven.
  void Drop(Request* request, Code code);
  // Limit of the call.
  Nanoseconds LimitOf(const CallArguments& arguments) const {
    return arguments.timeout() > 0 ? arguments.timeout() : calls_.timeout;
  }
  // As MessagesConfig::first_posted.
  bool FirstPosted(Message* message);
  void FinishMessage(Request* message, int peer, int32_t tag);

  // Functions for the thread that has the turn:
  // Drives one collective up to its deadline; `fused` is null except for a fused request. Nothing: it was paused.
  std::optional<Code> Drive(const CallArguments& arguments, const Request* fused, const Call& call,
                            const Manner& manner, const StreamFold* fold = nullptr);
  // Drives messages until it is enough, or `over` returns true; that is asked when there is news.
  void DriveMessages(const std::function<bool()>& over, const Manner& manner);
  // Drives what is queued, in order, until it is enough or nothing is left.
  void DriveQueue(const Manner& manner);
  // Drives the next call: *next or, with priorities, the call that it stores in *next. Nothing: it was paused.
  std::optional<Code> DriveNext(Request** next, const Manner& manner);
  // Lets messages move until the stream of the call has come to it. False: the time is over, or the communicator
  // failed. `may_pause`: another thread may go on with it.
  bool AwaitStream(const Request& request, const Manner& manner, bool may_pause);
  // Bytes in the send buffer of a call that is a repeat. The same for all of a plan.
  size_t BytesOfRepeat(const CallArguments& given) {
    if (calls_.repeated_plan != engine_.plan()) {
      calls_.repeated_plan = engine_.plan();
      calls_.repeated_data_bytes = SendBytes(given, rank(), nranks());
    }
    return calls_.repeated_data_bytes;
  }
  // As Driver::Repeat.
  bool RepeatNow(const Request& request) {
    return driver_.Repeat(request.call, request.arguments.sendbuf, request.arguments.recvbuf);
  }
  // As RunAgain, for a call whose turn it is.
  std::optional<Code> DriveAgain(const Request& request, const Manner& manner);
  // The rest of it, for a call that was not done at once.
  std::optional<Code> ResumeAgain(const Request& request, const Manner& manner);
  std::optional<Code> ResumeUntil(const Request& request, Deadline until);
  // Has `drives` drive until then.
  using Drives = std::function<std::optional<Code>(const Manner&)>;
  std::optional<Code> Patiently(Deadline until, const Drives& drives) const;
  static Deadline UntilOf(int64_t timeout_ms);
  std::optional<Code> CodeOf(Driver::Outcome outcome, const Verdict& verdict);
  void Fail(const Verdict& verdict);
  // Before buffers are given back: no device uses them any more and, if there is a verdict, no peer.
  void StopDevices();
  void FailMessages(Code code);

  // Functions of the progress thread, in dispatcher_progress.cc.
  void ProgressThread();
  Code ChooseNext(Request** next);
  Code AgreeOnNumber(uint64_t* number);

  int rank() const { return setup_->rank(); }
  int nranks() const { return setup_->nranks(); }
  bool by_priority() const { return setup_->options().priorities != 0; }
  // Whether calls keep the order in which they were made and all buffers lie in host memory.
  bool is_plain() const { return !by_priority() && queues_->host_only(); }

  Setup* const setup_;
  CallQueue* const queue_;
  FailureRecord* const failures_;
  FailureReport* const report_;
  Requests* const requests_;
  DomainQueues* const queues_;
  const std::function<void()> ended_;
  const std::function<void()> failed_;
  Engine engine_;
  Messages messages_;
  Driver driver_;
  CallStaging staging_;
  struct {
    Nanoseconds timeout = 0;         // Limit of each collective that has none of its own.
    uint64_t repeated_plan = 0;      // The engine's plan whose repeats have
    size_t repeated_data_bytes = 0;  // so many bytes in their send buffers.
  } calls_;
  const WaitPolicy background_policy_;  // For the progress thread, which shares cores with computation.
  struct Progress {
    std::atomic<bool> has_started{false};  // The thread ends only when the queue stops.
    std::mutex start_mu;
    std::thread thread;  // Started with start_mu held.
  };
  Progress progress_;
};

}  // namespace annulus
