// StreamOrder: the stream-ordered calls of one communicator, between their arguments and the device: what lies on a
// device is replaced by staging memory, so that the ranks do a call on host memory; what lies in host memory stays
// where it is, since the stream waits at a gate while the ranks use it.
//
// Threads: OpenAll and MemoryBytes from any; Call while its thread has the lock.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/calls/call_arguments.h"
#include "collectives/calls/request.h"
#include "collectives/calls/staged_buffers.h"
#include "collectives/reduce/memory_domains.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {

class StreamOrder {
 public:
  StreamOrder(int rank, int nranks) : buffers_(rank, nranks) {}
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Before anything else: takes the first of `domains` that has streams; null or none: calls with streams are refused.
  // They take up to `most_bytes` of pinned memory.
  void Open(const MemoryDomains* domains, size_t most_bytes);

  // Keeps the order in which calls enter their streams that in which they are queued; otherwise a call might wait in
  // the queue for one behind it. Held while calls are submitted of which some have a stream; else nothing is locked.
  // Whoever drives the communicator never waits for it.
  std::unique_lock<std::mutex> Lock(std::span<const CallArguments> calls);

  // Calls that are submitted together, until they are queued.
  class Call {
   public:
    explicit Call(StreamOrder* order) : order_(order) {}
    // Gives the place back unless it was enqueued.
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // Takes a place for `calls`, which are complete and valid, and has them use staging memory. Does nothing without a
    // stream. `may_do_nothing`: outputs keep their content where the calls end without having written them. Waits up
    // to `until`. Errors: kInvalidArgument, where their streams differ; as StreamCalls::Take.
    Status Stage(std::span<CallArguments> calls, bool may_do_nothing, Deadline until);
    // Puts the calls into their stream, and names their place in the requests `made` of them and in those that are to
    // be `queued`. Errors: as StreamCalls::Enqueue.
    Status Enqueue(std::span<Request* const> made, std::span<Request* const> queued);

   private:
    StreamOrder* const order_;
    void* stream_ = nullptr;
    StreamCalls::Place place_;
  };

  // Opens all gates, those of later calls too.
  void OpenAll() {
    if (calls_ != nullptr) calls_->OpenAll();
  }
  size_t MemoryBytes() const { return calls_ != nullptr ? calls_->MemoryBytes() : 0; }

 private:
  std::unique_ptr<StreamCalls> calls_;
  std::mutex mu_;
  // For the thread that has the lock; kept so that later calls need no memory.
  StagedBuffers buffers_;
  std::vector<StagedBuffers::Place> places_;
};

}  // namespace annulus
