// LinkCalls: a rank's calls whose slices links through shared memory leave in GPUs' memory, on the stand-in for CUDA's
// driver: their buffers, their results beside those of host memory, and what crosses from or to host memory.
//
// Threads: one for each rank.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/collectives/cuda/mapped_fold.h"
#include "tests/collectives/harness/calls.h"

namespace annulus {

constexpr size_t kLinkCallBytes = 4 << 20;
// Calls after which allocations are known at both ends: an end looks at its socket when it has nothing else to do.
constexpr int kMostWarmUps = 50;

enum class LinkCall { kMessage, kBroadcast, kAlltoallv, kGather, kReduce, kGroup };
// Reductions on the way to a root are kept in slots.
constexpr LinkCall kWithoutHost[] = {LinkCall::kMessage, LinkCall::kBroadcast, LinkCall::kAlltoallv, LinkCall::kGather,
                                     LinkCall::kGroup};
constexpr LinkCall kAll[] = {LinkCall::kMessage, LinkCall::kBroadcast, LinkCall::kAlltoallv,
                             LinkCall::kGather,  LinkCall::kReduce,    LinkCall::kGroup};

// Room for the calls of a rank, on a GPU or in host memory.
class Room {
 public:
  Room(cuda::FakeControl* fake, int gpu, size_t bytes = 3 * kLinkCallBytes) : fake_(fake), bytes_(bytes) {
    if (gpu < 0) {
      host_.resize(bytes);
      data_ = host_.data();
    } else {
      data_ = fake_->Allocate(gpu, bytes);
    }
  }
  ~Room() {
    if (host_.empty()) fake_->Free(data_);
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  std::byte* data() const { return data_; }
  void Write(const std::vector<std::byte>& from) const {
    if (host_.empty()) {
      fake_->Write(data_, from.data(), from.size());
    } else {
      std::memcpy(data_, from.data(), from.size());
    }
  }
  std::vector<std::byte> Read() const {
    std::vector<std::byte> to(bytes_);
    if (host_.empty()) {
      fake_->Read(to.data(), data_, bytes_);
    } else {
      std::memcpy(to.data(), data_, bytes_);
    }
    return to;
  }

 private:
  cuda::FakeControl* const fake_;
  const size_t bytes_;
  std::vector<std::byte> host_;
  std::byte* data_ = nullptr;
};

// One rank's calls of about kLinkCallBytes.
struct LinkCalls : FoldCalls {
  // `more`: so many bytes more for each part. Without them no slice is too small to stay where it is.
  annulus_status_t Do(LinkCall kind, std::byte* in, std::byte* out, size_t more = 0) const {
    const auto n = static_cast<size_t>(nranks);
    const int next = (rank + 1) % nranks;
    const int prev = (rank + nranks - 1) % nranks;
    switch (kind) {
      case LinkCall::kMessage: {
        Calls calls;
        calls.Rooted(ANNULUS_CALL_SEND, in, nullptr, kLinkCallBytes + more, ANNULUS_UINT8, next);
        calls.Rooted(ANNULUS_CALL_RECV, nullptr, out, kLinkCallBytes + more, ANNULUS_UINT8, prev);
        return calls.Do(comm);
      }
      case LinkCall::kBroadcast:
        return annulus_broadcast(comm, in, out, kLinkCallBytes + more, ANNULUS_UINT8, nranks - 1);
      case LinkCall::kAlltoallv: {
        // Rank i sends i + j + 1 parts to rank j.
        const size_t part = (size_t{256} << 10) + more;
        std::vector<size_t> counts(n);
        std::vector<size_t> offsets(n);
        for (size_t i = 0; i < n; ++i) {
          counts[i] = part * (i + static_cast<size_t>(rank) + 1);
          offsets[i] = i == 0 ? 0 : offsets[i - 1] + counts[i - 1];
        }
        return annulus_alltoallv(comm, in, counts.data(), offsets.data(), out, counts.data(), offsets.data(),
                                 ANNULUS_UINT8);
      }
      case LinkCall::kGather:
        return annulus_gather(comm, in, out, kLinkCallBytes / 2 + more, ANNULUS_UINT8, 0);
      case LinkCall::kReduce:
        return annulus_reduce(comm, in, out, kLinkCallBytes / sizeof(float), ANNULUS_FLOAT32, ANNULUS_SUM, 0);
      case LinkCall::kGroup: {
        Calls calls;
        for (const size_t part : {size_t{0}, size_t{1}, size_t{2}}) {
          const size_t at = part * kLinkCallBytes;
          calls.Rooted(ANNULUS_CALL_BROADCAST, in + at, out + at, kLinkCallBytes / 2 + part * more, ANNULUS_UINT8,
                       static_cast<int>(part) % nranks);
        }
        return calls.Do(comm);
      }
    }
    return ANNULUS_INTERNAL;
  }

  std::vector<std::byte> Numbers(int round) const {
    std::mt19937 random(static_cast<unsigned>(1000 * round + rank));
    std::vector<std::byte> numbers(3 * kLinkCallBytes);
    for (size_t i = 0; i < numbers.size(); i += sizeof(float)) {
      const float number = static_cast<float>(random() % 1000) / 8;
      std::memcpy(&numbers[i], &number, sizeof number);
    }
    return numbers;
  }

  // Makes the call on host memory, then on these buffers, and compares all of the output.
  void Compare(LinkCall kind, const Room& in, const Room& out, int round = 0) const {
    const Room host_in(fake, -1);
    const Room host_out(fake, -1);
    const std::vector<std::byte> numbers = Numbers(round);
    host_in.Write(numbers);
    in.Write(numbers);
    const std::vector<std::byte> nothing(3 * kLinkCallBytes, std::byte{0x33});
    host_out.Write(nothing);
    out.Write(nothing);
    const size_t more = 52 * static_cast<size_t>(round % 3);
    ASSERT_EQ(Do(kind, host_in.data(), host_out.data(), more), ANNULUS_OK) << LastMessage(comm);
    ASSERT_EQ(Do(kind, in.data(), out.data(), more), ANNULUS_OK) << LastMessage(comm);
    EXPECT_TRUE(out.Read() == host_out.Read()) << "rank " << rank << ", kind " << static_cast<int>(kind);
  }

  int64_t SumOf(int64_t value) const {
    EXPECT_EQ(annulus_allreduce(comm, &value, &value, 1, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK) << LastMessage(comm);
    return value;
  }
  // Copies to and from host memory that a call adds, on all ranks.
  int64_t CrossingsOf(LinkCall kind, const Room& in, const Room& out) const {
    const int64_t before = SumOf(fake->Counts().crossings);
    EXPECT_EQ(Do(kind, in.data(), out.data()), ANNULUS_OK) << LastMessage(comm);
    return SumOf(fake->Counts().crossings) - before;
  }
  // Whether the call soon goes without any.
  bool GoesWithoutHost(LinkCall kind, const Room& in, const Room& out) const {
    for (int round = 0; round < kMostWarmUps; ++round) {
      if (CrossingsOf(kind, in, out) == 0) return true;
    }
    return false;
  }
};

// Calls body(own) for each rank, in a thread of one process; nothing may have been done wrong.
using LinkBody = std::function<void(const LinkCalls& own)>;
inline void OnThreads(int nranks, const cuda::FakeOptions& options, const LinkBody& body) {
  InProcesses(1, [&](int) {
    const MappedRank process(options);
    Cluster(ProcessesConfig(nranks)).Run([&](annulus_comm_t* comm, int rank) {
      body({{process.fake, comm, rank, nranks}});
      annulus_barrier(comm);
    });
    EXPECT_EQ(process.fake->Violations(), std::vector<std::string>());
  });
}

// The same in a process for each rank.
inline void OnRanks(int nranks, const std::function<cuda::FakeOptions(int rank)>& options, const LinkBody& body) {
  const Cluster cluster(ProcessesConfig(nranks));
  InProcesses(nranks, [&](int rank) {
    MappedRank own(options(rank));
    own.Join(cluster, rank, nranks);
    body({{own.fake, own.comm, rank, nranks}});
    own.Leave();
    EXPECT_EQ(own.fake->Violations(), std::vector<std::string>());
    EXPECT_EQ(own.fake->Counts().mappings, 0);
  });
}

inline void OnOneGpuEach(int nranks, const LinkBody& body) {
  OnThreads(nranks, {}, body);
  OnRanks(
      nranks, [](int) { return cuda::FakeOptions(); }, body);
}

}  // namespace annulus
