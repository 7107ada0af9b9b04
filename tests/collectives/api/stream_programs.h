// Random programs of streams, and a model that does one step after the other: fills, copies and calls of every kind in
// several streams, with results that go into later calls, on two or three ranks.
//
// Threads: one for each object.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "collectives/core/collective.h"
#include "tests/collectives/api/stream_user.h"

namespace annulus::stream_programs {

using Random = std::mt19937_64;
using Memory = std::vector<unsigned char>;

inline constexpr int kStreams = 3;
inline constexpr int kPairs = 2;  // Pairs of buffers, in each stream.
inline constexpr int kSteps = 25;
inline constexpr annulus_kind_t kKinds[] = {
    ANNULUS_CALL_ALLREDUCE, ANNULUS_CALL_REDUCE_SCATTER, ANNULUS_CALL_ALLGATHER,       ANNULUS_CALL_BROADCAST,
    ANNULUS_CALL_REDUCE,    ANNULUS_CALL_GATHER,         ANNULUS_CALL_SCATTER,         ANNULUS_CALL_ALLTOALL,
    ANNULUS_CALL_BARRIER,   ANNULUS_CALL_ALLGATHERV,     ANNULUS_CALL_REDUCE_SCATTERV, ANNULUS_CALL_GATHERV,
    ANNULUS_CALL_SCATTERV,  ANNULUS_CALL_ALLTOALLV};

inline size_t Below(size_t bound, Random* random) { return (*random)() % bound; }

// One step, the same on all ranks.
struct Step {
  enum class What { kFill, kFeedBack, kCall, kInPlace, kGroup, kMixed, kShift } what;
  int stream;
  int pair;
  annulus_kind_t kind;
  int root;
  int value;
};

struct Program {
  int nranks;
  size_t count;               // Elements of a part.
  std::vector<size_t> parts;  // The same where parts differ in size; together as many.
  std::vector<Step> steps;
  // Steps that are done so often; in place of `steps`, where there are any.
  struct Round {
    std::vector<Step> steps;
    int times = 1;
    bool is_graph = false;  // Captured once, and launched so often. Each stream is a branch.
  };
  std::vector<Round> rounds = {};

  Program(int ranks, Random* random) : nranks(ranks) {
    constexpr size_t kCounts[] = {1, 40, 700, 20'000, 90'000};
    count = 1 + Below(kCounts[Below(std::size(kCounts), random)], random);
    size_t left = bytes();
    for (int i = 0; i + 1 < ranks; ++i) {
      parts.push_back(Below(left + 1, random));
      left -= parts.back();
    }
    parts.push_back(left);
    for (int i = 0; i < kSteps; ++i) {
      steps.push_back({static_cast<Step::What>(Below(7, random)), static_cast<int>(Below(kStreams, random)),
                       static_cast<int>(Below(kPairs, random)), kKinds[Below(std::size(kKinds), random)],
                       static_cast<int>(Below(static_cast<size_t>(ranks), random)),
                       static_cast<int>(Below(99, random))});
    }
  }
  // Has the steps be parts of graphs, or live ones in one stream, in turn.
  void MakeGraphs(Random* random) {
    for (size_t begin = 0; begin < steps.size();) {
      const size_t end = std::min(steps.size(), begin + 1 + Below(6, random));
      rounds.push_back({{steps.begin() + static_cast<ptrdiff_t>(begin), steps.begin() + static_cast<ptrdiff_t>(end)},
                        static_cast<int>(1 + Below(4, random)),
                        Below(3, random) > 0});
      begin = end;
    }
    steps.clear();
    for (const Round& round : rounds) {
      for (int i = 0; i < round.times; ++i) steps.insert(steps.end(), round.steps.begin(), round.steps.end());
    }
  }
  size_t bytes() const { return count * static_cast<size_t>(nranks); }
  // Elements that a rank sends another in an alltoallv, both ways.
  size_t Between(int a, int b) const { return parts[static_cast<size_t>((a + b) % nranks)]; }
};

// The memory of all ranks, one step after the other.
class Model {
 public:
  explicit Model(const Program& program) : program_(program) {
    const Memory zeros(program.bytes());
    for (auto& rank : ranks_) {
      for (auto& buffer : rank) buffer = zeros;
    }
    for (const Step& step : program.steps) Do(step);
  }

  static size_t In(int stream, int pair) { return static_cast<size_t>(2 * (stream * kPairs + pair)); }
  static size_t Out(int stream, int pair) { return In(stream, pair) + 1; }
  const Memory& At(int rank, size_t buffer) const { return ranks_[static_cast<size_t>(rank)][buffer]; }

 private:
  Memory& At(int rank, size_t buffer) { return ranks_[static_cast<size_t>(rank)][buffer]; }

  void Do(const Step& step) {
    const size_t in = In(step.stream, step.pair);
    const size_t out = Out(step.stream, step.pair);
    const int n = program_.nranks;
    for (int rank = 0; rank < n; ++rank) {
      if (step.what == Step::What::kFill) At(rank, in).assign(program_.bytes(), FillOf(step, rank));
      if (step.what == Step::What::kFeedBack) At(rank, in) = At(rank, out);
    }
    if (step.what == Step::What::kCall) Call(step.kind, step.root, in, out);
    if (step.what == Step::What::kInPlace) Call(ANNULUS_CALL_ALLREDUCE, 0, in, in);
    if (step.what == Step::What::kShift) {
      for (int rank = 0; rank < n; ++rank) Copy(At((rank + n - 1) % n, in), 0, 1, &At(rank, out), 0);
    }
    if (step.what == Step::What::kMixed) {
      Call(ANNULUS_CALL_ALLGATHER, 0, In(step.stream, 0), Out(step.stream, 0));
      Call(step.value % 2 == 0 ? ANNULUS_CALL_REDUCE_SCATTERV : ANNULUS_CALL_ALLREDUCE, 0, In(step.stream, 1),
           Out(step.stream, 1));
    }
    if (step.what != Step::What::kGroup) return;
    for (int pair = 0; pair < kPairs; ++pair) {
      Call(ANNULUS_CALL_ALLREDUCE, 0, In(step.stream, pair), Out(step.stream, pair));
    }
  }

  void Copy(const Memory& from, int part, int parts, Memory* to, int at) const {
    const size_t count = program_.count;
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(count) * part, count * static_cast<size_t>(parts),
                to->begin() + static_cast<ptrdiff_t>(count) * at);
  }

  Memory Sum(size_t in) {
    Memory sum(program_.bytes());
    for (int rank = 0; rank < program_.nranks; ++rank) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<unsigned char>(sum[i] + At(rank, in)[i]);
    }
    return sum;
  }

  // An allgatherv or a reduce_scatterv.
  void CallOfParts(bool gathers, size_t in, size_t out) {
    const Memory sum = Sum(in);
    ptrdiff_t begin = 0;
    for (int part = 0; part < program_.nranks; ++part) {
      const auto bytes = static_cast<ptrdiff_t>(program_.parts[static_cast<size_t>(part)]);
      if (gathers) {
        for (int rank = 0; rank < program_.nranks; ++rank)
          std::copy_n(At(part, in).begin(), bytes, At(rank, out).begin() + begin);
      } else {
        std::copy_n(sum.begin() + begin, bytes, At(part, out).begin());
      }
      begin += bytes;
    }
  }

  // A gatherv or a scatterv.
  void CallOfRoot(bool gathers, int root, size_t in, size_t out) {
    ptrdiff_t begin = 0;
    for (int rank = 0; rank < program_.nranks; ++rank) {
      const auto bytes = static_cast<ptrdiff_t>(program_.parts[static_cast<size_t>(rank)]);
      if (gathers) {
        std::copy_n(At(rank, in).begin(), bytes, At(root, out).begin() + begin);
      } else {
        std::copy_n(At(root, in).begin() + begin, bytes, At(rank, out).begin());
      }
      begin += bytes;
    }
  }

  void Exchange(size_t in, size_t out) {
    const int n = program_.nranks;
    for (int rank = 0; rank < n; ++rank) {
      auto to = At(rank, out).begin();
      for (int from = 0; from < n; ++from) {
        size_t begin = 0;
        for (int before = 0; before < rank; ++before) begin += program_.Between(from, before);
        const auto bytes = static_cast<ptrdiff_t>(program_.Between(from, rank));
        to = std::copy_n(At(from, in).begin() + static_cast<ptrdiff_t>(begin), bytes, to);
      }
    }
  }

  // With `count` elements in each part, as the call has it.
  void Call(annulus_kind_t kind, int root, size_t in, size_t out) {
    const int n = program_.nranks;
    if (kind == ANNULUS_CALL_ALLGATHERV || kind == ANNULUS_CALL_REDUCE_SCATTERV)
      return CallOfParts(kind == ANNULUS_CALL_ALLGATHERV, in, out);
    if (kind == ANNULUS_CALL_GATHERV || kind == ANNULUS_CALL_SCATTERV)
      return CallOfRoot(kind == ANNULUS_CALL_GATHERV, root, in, out);
    if (kind == ANNULUS_CALL_ALLTOALLV) return Exchange(in, out);
    const bool sums =
        kind == ANNULUS_CALL_ALLREDUCE || kind == ANNULUS_CALL_REDUCE || kind == ANNULUS_CALL_REDUCE_SCATTER;
    const Memory sum = Sum(in);
    for (int rank = 0; rank < n; ++rank) {
      Memory& to = At(rank, out);
      if (sums && (kind != ANNULUS_CALL_REDUCE || rank == root))
        Copy(sum, kind == ANNULUS_CALL_REDUCE_SCATTER ? rank : 0, 1, &to, 0);
      if (kind == ANNULUS_CALL_BROADCAST) Copy(At(root, in), 0, 1, &to, 0);
      if (kind == ANNULUS_CALL_SCATTER) Copy(At(root, in), rank, 1, &to, 0);
      for (int r = 0; r < n; ++r) {
        const bool gathers = kind == ANNULUS_CALL_ALLGATHER || (kind == ANNULUS_CALL_GATHER && rank == root);
        if (gathers) Copy(At(r, in), 0, 1, &to, r);
        if (kind == ANNULUS_CALL_ALLTOALL) Copy(At(r, in), rank, 1, &to, r);
      }
    }
  }

 public:
  static unsigned char FillOf(const Step& step, int rank) { return static_cast<unsigned char>(step.value + 10 * rank); }

 private:
  const Program& program_;
  std::array<std::array<Memory, 2 * kStreams * kPairs>, 3> ranks_;
};

// One rank's run of the program; where its buffers lie and when its streams are busy is its own affair.
class ProgramRun {
 public:
  ProgramRun(annulus_comm_t* comm, const Program& program, int rank, Random* own)
      : comm_(comm), program_(program), rank_(rank), own_(own) {
    for (cuda::Stream& stream : streams_) stream = user_.NewStream(Below(2, own) == 0 ? cuda::kStreamNonBlocking : 0);
    for (int other = 0; other < program.nranks; ++other) between_.push_back(program.Between(rank, other));
    for (size_t i = 0; i < memory_.size(); ++i) {
      const size_t bytes = program.bytes();
      memory_[i] = Below(4, own) == 0 ? user_.AllocatePinned(bytes) : user_.Allocate(bytes);
      user_.Fill(streams_[i / (2 * kPairs)], memory_[i], 0, bytes);
    }
  }

  void DoAll() {
    for (const Step& step : program_.steps) {
      if (Below(6, own_) == 0) user_.Hold(streams_[static_cast<size_t>(step.stream)]);
      Do(step);
      if (Below(3, own_) == 0) user_.LetGo();
    }
    user_.LetGo();
  }
  // The steps of one round, all in the first stream, or each in its own.
  void DoInOne(const std::vector<Step>& steps) {
    in_one_ = true;
    for (const Step& step : steps) Do(step);
    in_one_ = false;
  }
  // As `steps` are captured.
  void DoCaptured(const std::vector<Step>& steps) {
    is_captured_ = true;
    for (const Step& step : steps) Do(step);
    is_captured_ = false;
  }
  StreamUser& user() { return user_; }
  const std::array<cuda::Stream, kStreams>& streams() const { return streams_; }
  void Compare(const Model& model) {
    for (const cuda::Stream stream : streams_) ASSERT_TRUE(user_.Drain(stream));
    for (size_t i = 0; i < memory_.size(); ++i) {
      const Memory& expected = model.At(rank_, i);
      EXPECT_TRUE(user_.Read(memory_[i], expected.size()) == std::vector<int>(expected.begin(), expected.end()))
          << "buffer " << i << " of rank " << rank_;
    }
  }

 private:
  void Do(const Step& step) {
    const cuda::Stream stream = streams_[in_one_ ? 0 : static_cast<size_t>(step.stream)];
    std::byte* const in = memory_[Model::In(step.stream, step.pair)];
    std::byte* const out = memory_[Model::Out(step.stream, step.pair)];
    const int n = program_.nranks;
    Calls calls;
    switch (step.what) {
      case Step::What::kFill:
        return user_.Fill(stream, in, Model::FillOf(step, rank_), program_.bytes());
      case Step::What::kFeedBack:
        return user_.Copy(stream, in, out, program_.bytes());
      case Step::What::kCall:
        Add(&calls, stream, step.kind, in, out, step.root);
        break;
      case Step::What::kInPlace:
        AddInStream(&calls, stream, ANNULUS_CALL_ALLREDUCE, in, in, program_.count);
        break;
      case Step::What::kGroup:
        for (int pair = 0; pair < kPairs; ++pair) {
          AddInStream(&calls, stream, ANNULUS_CALL_ALLREDUCE, memory_[Model::In(step.stream, pair)],
                      memory_[Model::Out(step.stream, pair)], program_.count);
        }
        break;
      case Step::What::kMixed:
        Add(&calls, stream, ANNULUS_CALL_ALLGATHER, memory_[Model::In(step.stream, 0)],
            memory_[Model::Out(step.stream, 0)]);
        Add(&calls, stream, step.value % 2 == 0 ? ANNULUS_CALL_REDUCE_SCATTERV : ANNULUS_CALL_ALLREDUCE,
            memory_[Model::In(step.stream, 1)], memory_[Model::Out(step.stream, 1)]);
        break;
      case Step::What::kShift:
        AddInStream(&calls, stream, ANNULUS_CALL_SEND, in, nullptr, program_.count, (rank_ + 1) % n);
        AddInStream(&calls, stream, ANNULUS_CALL_RECV, nullptr, out, program_.count, (rank_ + n - 1) % n);
    }
    if (is_captured_) {
      ASSERT_EQ(calls.Submit(comm_, nullptr), ANNULUS_OK) << LastMessage();
      return;
    }
    ++submitted_;
    if (submitted_ % 8 == 0) user_.LetGo();  // There are places for 16.
    annulus_request_t* request = nullptr;
    const bool wants_request = Below(4, own_) == 0;
    ASSERT_EQ(calls.Submit(comm_, wants_request ? &request : nullptr), ANNULUS_OK) << LastMessage();
    if (wants_request) requests_.emplace_back(request, annulus_request_free);
  }

  void Add(Calls* calls, cuda::Stream stream, annulus_kind_t kind, const std::byte* in, std::byte* out, int root = 0) {
    annulus_call_t& call = AddInStream(calls, stream, kind, in, out, program_.count, root);
    const auto collective = static_cast<CollectiveKind>(kind);
    if (!HasVariableParts(collective)) return;
    const bool is_alltoallv = kind == ANNULUS_CALL_ALLTOALLV;
    call.count = is_alltoallv ? 0 : program_.parts[static_cast<size_t>(rank_)];
    const size_t* const counts = is_alltoallv ? between_.data() : program_.parts.data();
    if (SendHolds(collective, rank_ == root) == Holding::kParts) call.sendcounts = counts;
    if (RecvHolds(collective, rank_ == root) == Holding::kParts) call.recvcounts = counts;
  }

  annulus_comm_t* const comm_;
  const Program& program_;
  const int rank_;
  Random* const own_;
  StreamUser user_;
  std::array<cuda::Stream, kStreams> streams_{};
  std::array<std::byte*, 2 * kStreams * kPairs> memory_{};
  std::vector<std::unique_ptr<annulus_request_t, annulus_status_t (*)(annulus_request_t*)>> requests_;
  std::vector<size_t> between_;  // Elements that this rank sends each in an alltoallv, and gets from it.
  int submitted_ = 0;
  bool in_one_ = false;
  bool is_captured_ = false;
};

}  // namespace annulus::stream_programs
