// CallArguments: one collective as the user asked for it, and the checks that it is well formed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/annulus.h"
#include "collectives/core/collective.h"
#include "collectives/engine/engine.h"
#include "collectives/reduce/operations.h"

namespace annulus {

// What few calls have.
struct CallOptions {
  Nanoseconds timeout = 0;         // Limit of this call; 0: the communicator's.
  const char* label = nullptr;     // The user's name for the call; null: none.
  annulus_done_fn done = nullptr;  // Called when a queued call has ended; null: nothing is.
  void* done_context = nullptr;
  int priority = 0;          // Queued calls only: those with higher numbers may overtake others.
  bool agree_first = false;  // The ranks compare the call before any data moves.
  bool on_stream = false;    // Queued calls only: ordered by this stream.
  void* stream = nullptr;
  int32_t tag = 0;                         // A message's tag; a receive's may be kAnyTag (engine/queued_message.h).
  annulus_received_t* received = nullptr;  // Filled when a receive has ended well; null: nothing is.

  bool used() const {
    return timeout != 0 || label != nullptr || done != nullptr || priority != 0 || agree_first || on_stream ||
           tag != 0 || received != nullptr;
  }
};

// Tells the user of a receive which message it got. The struct is the user's, perhaps one of a later version.
void TellReceived(int source, int32_t tag, size_t count, annulus_received_t* out);

struct CallArguments {
  CollectiveKind kind = CollectiveKind::kNone;
  const void* sendbuf = nullptr;
  void* recvbuf = nullptr;
  size_t count = 0;  // Elements, with the meaning that annulus.h gives for the kind.
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int created_op = 0;      // The user's number if it may name a created operation; else 0.
  CustomReduction custom;  // The reduction of that operation, once it is looked up; `op` then has its wire name.
  int root = 0;            // The other end, for a message.
  const CallOptions* options = nullptr;  // Null: none is used, as in the smallest calls.
  // Queues of the memory domains in which the buffers lie, once they are looked up; null: host memory.
  DomainQueue* send_queue = nullptr;
  DomainQueue* recv_queue = nullptr;
  Layout send_layout;  // Arrays of nranks numbers, for kinds with variable parts.
  Layout recv_layout;

  Nanoseconds timeout() const { return options != nullptr ? options->timeout : 0; }
  const char* label() const { return options != nullptr ? options->label : nullptr; }
  annulus_done_fn done() const { return options != nullptr ? options->done : nullptr; }
  bool agree_first() const { return options != nullptr && options->agree_first; }
  int32_t tag() const { return options != nullptr ? options->tag : 0; }
  int priority() const { return options != nullptr ? options->priority : 0; }
};
// Each named call fills in one. At 152 bytes an allreduce of 8 bytes between two ranks took 0.43 us, at 128 bytes 0.40.
static_assert(sizeof(CallArguments) <= 128);

// Checks ranges, null pointers, alignment, sizes and overlap for `rank` of `nranks`.
// Errors: kInvalidArgument naming the argument and what is allowed.
Status CheckArguments(const CallArguments& arguments, int rank, int nranks);

// Whether an allreduce may use its buffers: a short form of CheckArguments for a count that is valid and not 0.
inline bool HasGoodBuffers(const CallArguments& allreduce) {
  const size_t bytes = allreduce.count * TypeBytes(allreduce.type);
  const uintptr_t send = reinterpret_cast<uintptr_t>(allreduce.sendbuf);
  const uintptr_t recv = reinterpret_cast<uintptr_t>(allreduce.recvbuf);
  const size_t distance = send < recv ? recv - send : send - recv;
  return send != 0 && recv != 0 && ((send | recv) & (TypeAlignment(allreduce.type) - 1)) == 0 &&
         (distance == 0 || distance >= bytes);
}

// The same for a call of any kind, whose arguments are valid but for its buffers.
bool HasGoodBuffers(const CallArguments& arguments, int rank, int nranks);

// Whether the buffers of a send and of a receive, which are valid, do not overlap.
bool AreApart(const CallArguments& send, const CallArguments& recv);

// Makes buffers null that this rank does not use: what a user left there may be no valid pointer any more.
void ForgetUnused(CallArguments* arguments, int rank, int nranks);

// The counts of an allgatherv or a reduce_scatterv, which are the same on all ranks.
inline std::span<const size_t> CountsOf(const CallArguments& arguments, int nranks) {
  const Layout& layout = IsAllgather(arguments.kind) ? arguments.recv_layout : arguments.send_layout;
  return {layout.counts, static_cast<size_t>(nranks)};
}

// Returns the call's identity on the wire. That of an allgatherv or a reduce_scatterv has a digest of the counts as its
// root.
Call CallOf(const CallArguments& arguments, int nranks, uint64_t sequence);

// Size of the send buffer of `rank` in bytes, up to the end of its last part.
size_t SendBytes(const CallArguments& arguments, int rank, int nranks);

// The buffers that the engine needs.
Buffers BuffersOf(const CallArguments& arguments);

}  // namespace annulus
