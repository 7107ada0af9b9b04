// What tests of folds in streams share: ranks whose calls of some kilobytes are folds, calls in a stream until they
// are, and calls beside the same on host memory.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "collectives/core/collective.h"
#include "tests/collectives/api/stream_user.h"
#include "tests/collectives/harness/cluster.h"

namespace annulus {

// Halves of the memory; calls of a 32nd of that may be folds.
constexpr size_t kPieceBytes = 64 * 1024;
// After so many all ranks know that they are.
constexpr int kCallsToAgree = 40;

inline ClusterConfig FoldingConfig(int nranks) {
  ClusterConfig config;
  config.nranks = nranks;
  config.transport = "shm";
  config.small_bytes = 256;
  config.stream_fold_bytes = 2 * kPieceBytes;
  config.stream_exchanges = true;
  return config;
}
// For a process that makes ranks.
inline ClusterConfig FoldingRanks(int nranks) {
  LoadDriver();
  return FoldingConfig(nranks);
}

// Calls until those that follow are folds, if they may be.
inline void Agree(annulus_comm_t* comm, StreamUser* user, cuda::Stream stream) {
  constexpr size_t kBytes = 4096;
  std::byte* const memory = user->Allocate(kBytes);
  user->Fill(stream, memory, 1, kBytes);
  for (int i = 0; i < kCallsToAgree; ++i) {
    ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_OK) << LastMessage();
    if (i % 3 == 0) {
      ASSERT_TRUE(user->Drain(stream));
    }
  }
  ASSERT_TRUE(user->Drain(stream));
}

enum class Where { kDevice, kInPlace, kHostInput, kHostOutput, kHost, kPinned };

struct StreamSum {
  size_t count;
  annulus_type_t type = ANNULUS_FLOAT32;
  annulus_op_t op = ANNULUS_SUM;
  Where where = Where::kDevice;
  size_t offset = 0;  // Elements before the buffers.
  annulus_kind_t kind = ANNULUS_CALL_ALLREDUCE;
  int nranks = 1;  // Where buffers have a part for each.
  int root = 0;

  // 0 where a rank has no such buffer.
  size_t bytes(Holding holding) const {
    if (holding == Holding::kNothing) return 0;
    return count * annulus_type_bytes(type) * (holding == Holding::kParts ? static_cast<size_t>(nranks) : 1);
  }
  size_t input_bytes(int rank) const { return bytes(SendHolds(static_cast<CollectiveKind>(kind), rank == root)); }
  size_t output_bytes(int rank) const { return bytes(RecvHolds(static_cast<CollectiveKind>(kind), rank == root)); }
};

inline annulus_status_t RunOnHost(annulus_comm_t* comm, const StreamSum& sum, const void* in, void* out) {
  switch (sum.kind) {
    case ANNULUS_CALL_REDUCE_SCATTER:
      return annulus_reduce_scatter(comm, in, out, sum.count, sum.type, sum.op);
    case ANNULUS_CALL_ALLGATHER:
      return annulus_allgather(comm, in, out, sum.count, sum.type);
    case ANNULUS_CALL_BROADCAST:
      return annulus_broadcast(comm, in, out, sum.count, sum.type, sum.root);
    case ANNULUS_CALL_REDUCE:
      return annulus_reduce(comm, in, out, sum.count, sum.type, sum.op, sum.root);
    case ANNULUS_CALL_GATHER:
      return annulus_gather(comm, in, out, sum.count, sum.type, sum.root);
    case ANNULUS_CALL_SCATTER:
      return annulus_scatter(comm, in, out, sum.count, sum.type, sum.root);
    case ANNULUS_CALL_ALLTOALL:
      return annulus_alltoall(comm, in, out, sum.count, sum.type);
    default:
      return annulus_allreduce(comm, in, out, sum.count, sum.type, sum.op);
  }
}

inline std::vector<std::byte> RandomBytes(size_t size, int seed) {
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  std::vector<std::byte> bytes(size);
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, size - at));
  }
  return bytes;
}

// A rank's buffers of one sum in a stream.
class SumInStream {
 public:
  SumInStream(annulus_comm_t* comm, const StreamSum& sum, int rank, StreamUser* user, cuda::Stream stream)
      : sum_(sum), user_(user), before_(sum.offset * annulus_type_bytes(sum.type)), expected_(sum.output_bytes(rank)) {
    const std::vector<std::byte> input = RandomBytes(sum.input_bytes(rank), 100 * static_cast<int>(sum.type) + rank);
    EXPECT_EQ(RunOnHost(comm, sum, input.data(), expected_.data()), ANNULUS_OK);
    in_ = MemoryFor(sum.where == Where::kHostInput || sum.where == Where::kHost, input.size(), &host_in_);
    out_ = sum.where == Where::kInPlace
               ? in_
               : MemoryFor(sum.where == Where::kHostOutput || sum.where == Where::kHost, expected_.size(), &host_out_);
    if (input.empty()) {
      in_ = nullptr;
    } else if (IsOnDevice(in_)) {
      user->fake()->Write(in_ + before_, input.data(), input.size());
    } else {
      std::memcpy(in_ + before_, input.data(), input.size());
    }
    Calls calls;
    std::byte* const in = input.empty() ? nullptr : in_ + before_;
    std::byte* const out = expected_.empty() ? nullptr : out_ + before_;
    annulus_call_t& call = calls.Rooted(sum.kind, in, out, sum.count, sum.type, sum.root);
    call.op = sum.op;
    call.stream = stream;
    call.stream_kind = ANNULUS_STREAM_CUDA;
    EXPECT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
  }

  // Its stream has passed the call.
  void Compare() const {
    std::vector<std::byte> found(expected_.size());
    if (found.empty()) return;
    if (IsOnDevice(out_)) {
      user_->fake()->Read(found.data(), out_ + before_, found.size());
    } else {
      std::memcpy(found.data(), out_ + before_, found.size());
    }
    EXPECT_TRUE(std::memcmp(found.data(), expected_.data(), found.size()) == 0)
        << "type " << sum_.type << ", operation " << sum_.op << ", " << sum_.count << " elements, place "
        << static_cast<int>(sum_.where);
  }

 private:
  std::byte* MemoryFor(bool on_host, size_t own_bytes, std::vector<std::byte>* host) const {
    const size_t bytes = before_ + own_bytes;
    if (sum_.where == Where::kPinned) return user_->AllocatePinned(bytes);
    if (!on_host) return user_->Allocate(bytes);
    host->resize(bytes);
    return host->data();
  }
  bool IsOnDevice(const std::byte* memory) const {
    cuda::PointerPlace place;
    return user_->driver().PlaceOf(memory, &place).ok() && place.type == cuda::MemoryType::kDevice;
  }

  const StreamSum sum_;
  StreamUser* const user_;
  const size_t before_;
  std::vector<std::byte> expected_;
  std::vector<std::byte> host_in_;
  std::vector<std::byte> host_out_;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
};

inline void Compare(annulus_comm_t* comm, const StreamSum& sum, int rank, StreamUser* user, cuda::Stream stream) {
  const SumInStream call(comm, sum, rank, user, stream);
  ASSERT_TRUE(user->Drain(stream));
  call.Compare();
}

}  // namespace annulus
