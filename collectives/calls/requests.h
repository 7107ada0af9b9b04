// Requests: the requests of one communicator, from their creation until nobody needs them: what they stand for, whether
// they are done, and how many threads wait for them.
//
// Threads: any; one lock guards them all, that of the communicator's queue, so that a call is made and queued, or
// driven and ended, within one lock. A request's arguments, call and number belong to its creator until it is queued,
// and then to the thread that has the turn (call_queue.h).
#pragma once

#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/calls/callbacks.h"
#include "collectives/calls/mutex.h"
#include "collectives/calls/request.h"
#include "collectives/calls/request_table.h"

namespace annulus {

// Memory limit for a new request, in bytes.
struct RequestBudget {
  size_t most = 0;            // Limit for the whole communicator; 0 = no limit.
  size_t held_elsewhere = 0;  // Held by the communicator, not counting its requests.
  size_t wanted = 0;          // Needed for this request.
};

// What a request that failed stood for.
struct FailedCall {
  CollectiveKind kind = CollectiveKind::kNone;  // None for a group of calls.
  std::string label;
};

struct RequestsConfig {  // All pointers outlive the requests.
  RequestTable* table = nullptr;
  Communicator* owner = nullptr;  // Recorded in the table as the owner of their handles.
  Callbacks* callbacks = nullptr;
  int rank = 0;
  int nranks = 1;
  Mutex* mu = nullptr;  // Guards the requests.
};

class Requests {
 public:
  // Limits of waits are cut to this: practically forever, and within what the clock can add.
  static constexpr int64_t kLongestWaitMs = int64_t{365} * 24 * 3600 * 1000;

  // Returns when the request is done or, if that is earlier, at the deadline. Called with no lock held.
  using AwaitEnd = std::function<void(Request* request, Deadline until)>;

  // Requests that are not queued yet. They are freed unless they are kept: when what comes before has failed.
  class Unqueued {
   public:
    // `made` outlives the object, and is not empty where requests are made of it.
    Unqueued(Requests* requests, std::span<Request* const> made) : requests_(requests), made_(made) {}
    ~Unqueued();
    Unqueued(const Unqueued&) = delete;
    Unqueued& operator=(const Unqueued&) = delete;
    // As MakeFused and MakeGroup; the result is not queued yet either.
    Request* Fuse(const std::vector<Request*>& members);
    Request* Group(const std::vector<Request*>& members);
    void Keep() { requests_ = nullptr; }

   private:
    Requests* requests_;
    const std::span<Request* const> made_;
    std::vector<Request*> more_;
  };

  explicit Requests(const RequestsConfig& config);
  // Frees all requests. Nobody may be waiting for one.
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  // Creates a request for one call. All Make functions let std::bad_alloc through.
  Request* Make(const CallArguments& arguments);
  // Creates made[i] for calls[i] of a user, all or none, within a budget. `discarded`: the user does not need them.
  // Errors: kOutOfMemory.
  Status MakeWithin(const RequestBudget& budget, std::span<const CallArguments> calls, bool discarded, Request** made);
  // Creates a request that replaces `members`, which are independent allreduces of one type and operation.
  Request* MakeFused(const std::vector<Request*>& members);
  // Creates the request of an agreement: every rank gives `words` numbers, and gets those of all ranks. They lie in
  // its `numbers`, this rank's own first. It goes with its end.
  Request* MakeAgreement(size_t words);
  // Creates the group's own request. It is done when all `members` are; at once when there are none.
  Request* MakeGroup(const std::vector<Request*>& members);

  // Has the agreement hold those of `requests` that are collectives; messages wait for nobody.
  void Hold(Request* agreement, std::span<Request* const> requests);

  // Marks as done the request, its members, what it holds, and its group if this was the last one of it. The threads
  // that wait must be told.
  void Finish(Request* request, Code code);
  // The same for an agreement that the ranks did not reach: `why`, with a message, is the outcome of what it holds.
  void Refuse(Request* agreement, const Status& why);

  // Releases a request that no user holds and that is done. Returns its outcome.
  Status Release(Request* request);
  // As in Communicator. `await` is null inside a reduction function, where waiting would never end.
  Status Wait(RequestHandle handle, int64_t timeout_ms, const AwaitEnd& await, FailedCall* failed);
  Status Free(RequestHandle handle, const AwaitEnd& await);
  // Frees a request that is done and not refused, and for which nobody waits. Returns false when it is not so, or the
  // handle is invalid. One that has ended well takes no lock (RequestTable::LetGo).
  bool FreeDone(RequestHandle handle);

  size_t MemoryBytes() const;

  // Functions for the holder of config.mu:
  // Creates a request, as MakeWithin does without a budget.
  Request* Add(const CallArguments& arguments);
  // The same for a call without options or arrays of numbers, on its own. Its `call` is for the caller to set.
  Request* AddPlain(const CallArguments& arguments) {
    CollectLatest();
    Request* const request = used_ < requests_.size() ? AcquireSpare() : Acquire();
    request->arguments = arguments;
    request->is_plain = true;
    return request;
  }
  // Creates made[i] for calls[i], all or none, as MakeWithin does, and a group's own request if there are several calls
  // and they are not discarded. Returns that or the first.
  Request* AddAll(std::span<const CallArguments> calls, bool discarded, Request** made);
  // Creates one request for several independent calls that are alike (group.h).
  Request* AddFused(std::span<const CallArguments> calls);
  // Creates the request of a call without options that has ended well, in what is spare (HasSpare).
  Request* AddEnded() {
    CollectLatest();
    Request* const request = AcquireSpare();
    request->is_plain = true;
    EndPlain(request, Code::kOk);
    return request;
  }
  // The same for one with arrays, right after HasSpareFor was true of it; needs no memory, and collects nothing.
  Request* AddSpare(const CallArguments& arguments) {
    Request* const request = AcquireSpare();
    request->arguments = arguments;
    request->is_plain = true;
    CopyLayouts(request);
    return request;
  }
  bool UsesLayouts(const CallArguments& a) const {
    // If only the root's arrays are used, those of the others may point anywhere.
    return HasVariableParts(a.kind) && (!HasRoot(a.kind) || config_.rank == a.root);
  }
  // Whether the next request needs no memory, with the arrays of such a call.
  bool HasSpareFor(const CallArguments& arguments) {
    if (!UsesLayouts(arguments)) return HasSpare();
    CollectLatest();
    return used_ < requests_.size() && requests_[used_]->numbers.capacity() >= NumbersOfLayouts();
  }
  // Collects nothing itself, so that what is sent next leaves without that.
  bool HasSpare() const {
    return used_ < requests_.size() || (used_ > 0 && MayCollect(Latest()) && table_->MayRenew(Latest()));
  }
  void Forget(Request* request);
  // The request, null when the handle is invalid.
  Request* Find(RequestHandle handle) const { return table_->Find(handle); }
  // As Finish.
  void MarkDone(Request* request, Code code) {
    if (!request->is_plain) return MarkAllDone(request, code);
    EndPlain(request, code);
    ForgetIfUnused(request);
  }

  // Whether requests with callbacks may be made. Takes no lock.
  bool MayCallBack() const { return config_.callbacks->has_started(); }
  // Whether the handle is valid and its request is known to have ended well. Takes no lock.
  bool HasEndedWell(RequestHandle handle) const { return table_->HasEndedWell(handle); }

 private:
  // Frees requests that were made, unless they are kept: the latest one, or all from here on. With mu_ held.
  class Rollback {
   public:
    Rollback(Requests* requests, const Request* latest) : requests_(requests), size_(latest->place) {}
    // Others are recycled before, and not meanwhile: that would change the places of those just made.
    explicit Rollback(Requests* requests) : requests_(requests) {
      requests->Collect();
      size_ = requests->used_;
      makes_several_ = requests->is_making_several_ = true;
    }
    ~Rollback() {
      while (!is_kept_ && requests_->used_ > size_) requests_->Forget(requests_->Latest());
      if (makes_several_) requests_->is_making_several_ = false;
    }
    Rollback(const Rollback&) = delete;
    Rollback& operator=(const Rollback&) = delete;
    void Keep() { is_kept_ = true; }

   private:
    Requests* const requests_;
    size_t size_ = 0;
    bool makes_several_ = false;
    bool is_kept_ = false;
  };

  // Copies the arrays of numbers that the request's call uses.
  void CopyLayouts(Request* request) const;
  // Numbers of the arrays of a call: counts and offsets, of both buffers.
  size_t NumbersOfLayouts() const { return 4 * static_cast<size_t>(config_.nranks); }

  // As many as a large group of small calls takes.
  static constexpr size_t kMostSpare = 128;

  // All with mu_ held.
  // A request of which nothing is known yet; the second one does not look for more to recycle.
  Request* Acquire();
  Request* AcquireSpare() {
    Request* const request = requests_[used_].get();
    table_->Renew(request);
    request->place = used_++;
    return request;
  }
  // Forget for the latest one.
  void ForgetLatest(Request* request) {
    --used_;
    const bool keeps = table_->Recycle(request) && requests_.size() - used_ <= kMostSpare;
    if (!keeps) GiveBack();
  }
  // Gives the first spare one back to the table.
  void GiveBack();
  // Recycles requests that their users have let go of: the latest ones, or all of them.
  void CollectLatest() {
    while (used_ > 0 && MayCollect(Latest())) ForgetLatest(Latest());
  }
  void CollectAll();
  // The latest ones, and all when there are many.
  void Collect();
  bool MayCollect(Request* request) const { return table_->IsLetGo(request) && request->waiters == 0; }
  // The one that was acquired last, of those in use.
  Request* Latest() const { return requests_[used_ - 1].get(); }
  Status CheckBudget(const RequestBudget& budget);
  // The request by which the user sees the end of the call: a group's, or its own.
  static const Request& SeenBy(const Request& request) { return request.group != nullptr ? *request.group : request; }
  // Whether the user hears how it ends: through a request or a callback.
  static bool IsHeard(const Request& request);
  void ForgetIfUnused(Request* request) {
    if (request->done && request->discarded && request->waiters == 0) Forget(request);
  }
  void EndPlain(Request* request, Code code) {
    request->code = code;
    request->SetDone();
    if (code == Code::kOk) table_->NoteGoodEnd(request);
  }
  void MarkAllDone(Request* request, Code code);
  Request* AddGroup(std::span<Request* const> members);
  // Has the request, made of one of several allreduces, stand for those of all `tensors`.
  void Combine(std::span<const Tensor> tensors, Request* fused) const;
  size_t Bytes() const;

  // Without mu_.
  void LogUnread(const Status& refusal) const;

  const RequestsConfig config_;
  RequestTable* const table_;
  Mutex& mu_;
  std::vector<RequestTable::Owned> requests_;  // Those in use, then up to kMostSpare recycled ones.
  size_t used_ = 0;                            // Number of those in use.
  bool is_making_several_ = false;             // None is recycled meanwhile.
  std::vector<Tensor> tensors_;                // Tensors of the latest AddFused; kept for its memory.
  size_t collect_at_ = 0;                      // That many are in use when all are looked at that were let go.
};

}  // namespace annulus
