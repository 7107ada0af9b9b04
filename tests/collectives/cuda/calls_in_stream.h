// CallsInStream: one rank's calls that are submitted to a stream together, each with buffers of its own, beside the
// same calls on host memory, whose results they must have bit for bit.
//
// Threads: one for each object.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "collectives/core/collective.h"
#include "tests/collectives/api/stream_folds.h"
#include "tests/collectives/api/stream_user.h"

namespace annulus {

struct CallInStream {
  annulus_kind_t kind = ANNULUS_CALL_ALLREDUCE;
  // Elements of each rank's part; of kinds with parts of one size, only the first. Of an alltoallv those that rank 0
  // sends each, then those of rank 1, and so on.
  std::vector<size_t> counts = {};
  annulus_type_t type = ANNULUS_FLOAT32;
  annulus_op_t op = ANNULUS_SUM;
  Where where = Where::kDevice;
  int root = 0;
  bool has_gaps = false;  // The parts lie apart, in an order of this rank's own.

  bool varies() const { return HasVariableParts(static_cast<CollectiveKind>(kind)); }
};

class CallsInStream {
 public:
  CallsInStream(annulus_comm_t* comm, int rank, int nranks, StreamUser* user)
      : comm_(comm), rank_(rank), nranks_(nranks), user_(user) {}

  void Add(const CallInStream& call) {
    ones_.push_back(std::make_unique<One>());
    One& one = *ones_.back();
    one.call = call;
    Arrange(&one);
    one.host_in = RandomBytes(one.in_bytes, 1000 * static_cast<int>(ones_.size()) + rank_);
    one.expected = RandomBytes(one.out_bytes, 7);  // What no part has stays as it is.
    const Where where = call.where;
    one.in = Put(where == Where::kHostInput || where == Where::kHost, where, one.host_in, &one.own_in);
    one.out = Put(where == Where::kHostOutput || where == Where::kHost, where, one.expected, &one.own_out);
    if (where == Where::kInPlace) PutInPlace(&one);
  }
  // On host memory, then in the stream.
  annulus_status_t Submit(cuda::Stream stream, annulus_request_t** request = nullptr) {
    std::vector<annulus_call_t> calls;
    for (const auto& one : ones_) calls.push_back(CallOn(*one, one->host_in.data(), one->expected.data()));
    annulus_request_t* on_host = nullptr;
    EXPECT_EQ(annulus_submit(comm_, calls.data(), calls.size(), &on_host), ANNULUS_OK) << LastMessage(comm_);
    EXPECT_EQ(annulus_request_wait(on_host, -1), ANNULUS_OK) << LastMessage(comm_);
    annulus_request_free(on_host);
    return SubmitOnly(stream, request);
  }
  // Without results to compare with.
  annulus_status_t SubmitOnly(cuda::Stream stream, annulus_request_t** request = nullptr) const {
    std::vector<annulus_call_t> calls;
    for (const auto& one : ones_) {
      calls.push_back(CallOn(*one, one->in, one->out));
      calls.back().stream = stream;
      calls.back().stream_kind = ANNULUS_STREAM_CUDA;
    }
    return annulus_submit(comm_, calls.data(), calls.size(), request);
  }

  // Their stream has passed the calls.
  void Compare() const {
    for (size_t i = 0; i < ones_.size(); ++i) {
      const One& one = *ones_[i];
      if (one.out_bytes == 0) continue;
      const std::vector<int> found = user_->Read(one.out, one.out_bytes);
      const auto is_same = [](int a, std::byte b) { return a == static_cast<int>(b); };
      EXPECT_TRUE(std::equal(found.begin(), found.end(), one.expected.begin(), one.expected.end(), is_same))
          << "call " << i << " of " << ones_.size() << ", kind " << one.call.kind << ", type " << one.call.type
          << ", place " << static_cast<int>(one.call.where) << ", rank " << rank_;
    }
  }

 private:
  // The parts of a buffer that has one for each rank, in elements.
  struct Side {
    std::vector<size_t> counts;
    std::vector<size_t> offsets;
    size_t end = 0;
  };
  struct One {
    CallInStream call;
    Side send;
    Side recv;
    size_t in_bytes = 0;
    size_t out_bytes = 0;
    size_t own_at = 0;  // Where this rank's part lies in the buffer that has all, in bytes.
    std::vector<std::byte> host_in;
    std::vector<std::byte> expected;
    std::vector<std::byte> own_in;
    std::vector<std::byte> own_out;
    std::byte* in = nullptr;
    std::byte* out = nullptr;
  };

  void Arrange(One* one) const {
    const CallInStream& call = one->call;
    const size_t element = annulus_type_bytes(call.type);
    const auto kind = static_cast<CollectiveKind>(call.kind);
    one->send = SideOf(call, true);
    one->recv = SideOf(call, false);
    const auto own = static_cast<size_t>(rank_);
    one->own_at = one->send.offsets[own] * element;
    const auto bytes = [&](Holding holding, const Side& side) {
      if (holding == Holding::kNothing) return size_t{0};
      return (holding == Holding::kParts ? side.end : call.counts[call.varies() ? own : 0]) * element;
    };
    one->in_bytes = bytes(SendHolds(kind, rank_ == call.root), one->send);
    one->out_bytes = bytes(RecvHolds(kind, rank_ == call.root), one->recv);
  }

  Side SideOf(const CallInStream& call, bool sends) const {
    const auto n = static_cast<size_t>(nranks_);
    const auto own = static_cast<size_t>(rank_);
    Side side{std::vector<size_t>(n), std::vector<size_t>(n), 0};
    for (size_t i = 0; i < n; ++i) {
      const size_t part = call.has_gaps ? (i + own) % n : i;
      if (call.has_gaps) side.end += 3;
      side.offsets[part] = side.end;
      if (call.kind == ANNULUS_CALL_ALLTOALLV) {
        side.counts[part] = call.counts[sends ? own * n + part : part * n + own];
      } else {
        side.counts[part] = call.counts[call.varies() ? part : 0];
      }
      side.end += side.counts[part];
    }
    return side;
  }

  annulus_call_t CallOn(const One& one, const std::byte* in, std::byte* out) const {
    const CallInStream& call = one.call;
    annulus_call_t made{};
    made.struct_bytes = sizeof made;
    made.kind = call.kind;
    made.type = call.type;
    made.op = call.op;
    made.root = call.root;
    made.sendbuf = one.in_bytes > 0 ? in : nullptr;
    made.recvbuf = one.out_bytes > 0 ? out : nullptr;
    made.count = call.counts[call.varies() ? static_cast<size_t>(rank_) : 0];
    if (!call.varies()) return made;
    const auto kind = static_cast<CollectiveKind>(call.kind);
    if (SendHolds(kind, rank_ == call.root) == Holding::kParts) {
      made.sendcounts = one.send.counts.data();
      made.sendoffsets = call.has_gaps ? one.send.offsets.data() : nullptr;
    }
    if (RecvHolds(kind, rank_ == call.root) == Holding::kParts) {
      made.recvcounts = one.recv.counts.data();
      made.recvoffsets = call.has_gaps ? one.recv.offsets.data() : nullptr;
    }
    return made;
  }

  // Memory with that content.
  std::byte* Put(bool on_host, Where where, const std::vector<std::byte>& content, std::vector<std::byte>* host) const {
    if (content.empty()) return nullptr;
    if (on_host) {
      *host = content;
      return host->data();
    }
    std::byte* const memory =
        where == Where::kPinned ? user_->AllocatePinned(content.size()) : user_->Allocate(content.size());
    if (where == Where::kPinned) {
      std::memcpy(memory, content.data(), content.size());
    } else {
      user_->fake()->Write(memory, content.data(), content.size());
    }
    return memory;
  }

  // The smaller buffer is this rank's part of the larger one. What else is there must be what is expected.
  void PutInPlace(One* one) const {
    const bool out_has_all = one->out_bytes >= one->in_bytes;
    if (out_has_all) {
      const size_t at = one->out_bytes == one->in_bytes && !HasParts(*one) ? 0 : one->own_at;
      one->in = one->out + at;
      if (one->in_bytes > 0) user_->fake()->Write(one->in, one->host_in.data(), one->in_bytes);
    } else {
      one->out = one->in + one->own_at;
    }
  }
  static bool HasParts(const One& one) {
    const auto kind = static_cast<CollectiveKind>(one.call.kind);
    return SendHolds(kind, true) == Holding::kParts || RecvHolds(kind, true) == Holding::kParts;
  }

  annulus_comm_t* const comm_;
  const int rank_;
  const int nranks_;
  StreamUser* const user_;
  std::vector<std::unique_ptr<One>> ones_;
};

// Submits one call, and compares once its stream has passed it.
inline void CompareOne(annulus_comm_t* comm, int rank, int nranks, StreamUser* user, cuda::Stream stream,
                       const CallInStream& call) {
  CallsInStream calls(comm, rank, nranks, user);
  calls.Add(call);
  ASSERT_EQ(calls.Submit(stream), ANNULUS_OK) << LastMessage();
  ASSERT_TRUE(user->Drain(stream));
  calls.Compare();
}

}  // namespace annulus
