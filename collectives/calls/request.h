// Request: one queued collective or message, as its communicator stores it.
//
// Threads: requests.h says who may touch what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "collectives/calls/call_arguments.h"
#include "collectives/calls/callbacks.h"
#include "collectives/core/segments.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {

// Identifies a request while the user holds it, and nothing afterwards. No two requests of a process share a handle.
using RequestHandle = uint64_t;

class RequestList;
struct Request;
struct StreamFold;

// What a request begins with. Few bytes, since every request resets them.
struct RequestState {
  RequestHandle handle = 0;
  size_t place = 0;                   // Index among its communicator's requests.
  Request* group = nullptr;           // The own request of the group that this one belongs to; null: none.
  StreamCall* stream = nullptr;       // Its place in a stream; null: it has no stream.
  const StreamFold* fold = nullptr;   // The fold on the device, within the stream; null: none.
  size_t unfinished = 0;              // Number of unfinished calls, for a group's own request.
  size_t fused_calls = 0;             // Number of calls that it combines and that have no requests of their own.
  uint64_t plan = 0;                  // The engine's plan that it was found to repeat (Engine::plan); 0: none.
  uint64_t number = 0;                // Number among the queued collectives, in the order of the calls; 0: an agreement
                                      // has put it at the front of the queue.
  const RequestList* list = nullptr;  // The list that it is in; null: none.
  Request* next = nullptr;            // Its successor there.
  Request* previous = nullptr;        // Its predecessor there.
  int waiters = 0;                    // Threads that wait for it and will access it again.
  bool discarded = false;             // Not held by the user: released once done and nobody waits.
  bool told = false;                  // Its outcome was asked for.
  bool awaited = false;               // Who holds it is about to see its end, so callbacks need not be called at once.
  bool is_plain = false;              // A call without options, group or stream, so that it holds no memory but that of
                                      // `numbers`, and its end concerns nobody but those who wait for it.
  bool done = false;                  // Also read without the lock, by IsDone.
  Code code = Code::kInProgress;
};

static_assert(std::is_trivially_destructible_v<RequestState>);

struct Request : RequestState {
  // Written for each request, and stale once it is freed.
  CallArguments arguments;
  Call call;
  CallOptions options;  // A copy of the arguments' options.

  std::vector<size_t> numbers;                // Copies of the arrays in the arguments' layouts.
  std::string label;                          // A copy of the options' label.
  std::shared_ptr<const UserReduction> keep;  // Keeps the created operation of the arguments until the end.
  // Tensors of the group's allreduces that this request combines, in place of its arguments' buffers.
  Segments segments;
  std::vector<Request*> members;  // Requests of these allreduces, unless they have none (fused_calls).
  // Requests that are queued when this one, an agreement, has shown that the ranks agree on them.
  std::vector<Request*> held;
  std::unique_ptr<Callbacks::Place> done_place;  // For the callback, if any; kept for the next one.
  std::shared_ptr<const Status> refusal;         // Reason for which the ranks did not agree on it; null: none.

  // Whether it combines calls: then `segments` has their tensors, and `call` says what they are together.
  bool is_fused() const { return fused_calls > 0 || !members.empty(); }
  // Whether its stream, if any, has come to it.
  bool IsReady() const { return stream == nullptr || stream->IsReady(); }
  // Whether it has ended. Other threads' changes to the buffers are seen then.
  bool IsDone() const { return __atomic_load_n(&done, __ATOMIC_ACQUIRE); }
  // The outcome of a request that is done, as Communicator's functions for calls return it.
  Status Outcome() const { return refusal != nullptr ? *refusal : Status(code); }
  // With the lock of the requests, which orders it before any look for threads that wait.
  void SetDone() { __atomic_store_n(&done, true, __ATOMIC_RELEASE); }

  // Most numbers for which memory is kept.
  static constexpr size_t kMostKeptNumbers = 256;

  // Resets the request but keeps memory that the next one may use. Most requests hold none.
  void Clear() {
    if (is_plain) return ClearPlain();
    std::construct_at(static_cast<RequestState*>(this));  // Assignment would copy from another one.
    const bool holds_none = numbers.empty() && label.empty() && keep == nullptr && held.empty() && refusal == nullptr &&
                            segments.empty() && members.empty();
    if (!holds_none) ClearMemory();
  }

 private:
  // Clear for a request that has used nothing else of its state.
  void ClearPlain() {
    numbers.clear();
    plan = 0;
    number = 0;
    list = nullptr;
    waiters = 0;
    discarded = told = awaited = is_plain = done = false;
    code = Code::kInProgress;
  }
  void ClearMemory();
};

// Stores a request's handle where the user has the pointer that stands for it.
inline void GiveHandle(const Request& request, void* pointer) {
  static_assert(sizeof(void*) == sizeof(RequestHandle));
  std::memcpy(pointer, &request.handle, sizeof request.handle);
}

// Requests in the order in which they were added. The links lie in the requests, so that adding one needs no memory and
// cannot fail. A request is in one list at a time. Threads: one at a time.
class RequestList {
 public:
  bool empty() const { return first_ == nullptr; }
  // The first one, null when there is none. Request::next leads on.
  Request* front() const { return first_; }

  void push_back(Request* request) {
    request->list = this;
    request->previous = last_;
    request->next = nullptr;
    (last_ != nullptr ? last_->next : first_) = request;
    last_ = request;
  }

  void push_front(Request* request) {
    request->list = this;
    request->previous = nullptr;
    request->next = first_;
    (first_ != nullptr ? first_->previous : last_) = request;
    first_ = request;
  }

  // Does nothing to a request that is not in this list.
  void erase(Request* request) {
    if (request->list != this) return;
    (request->previous != nullptr ? request->previous->next : first_) = request->next;
    (request->next != nullptr ? request->next->previous : last_) = request->previous;
    request->list = nullptr;
  }
  void pop_front() { erase(first_); }

 private:
  Request* first_ = nullptr;
  Request* last_ = nullptr;
};

}  // namespace annulus
