// The schedules of an allreduce in two hops, and of its halves, run on links that hold few slices, by ranks that move
// in any order: both ends of a link name the same slices, every part of the result is folded once and reaches all, and
// no number of slots makes the ranks wait for each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/algorithms/two_hop/two_hop_schedule.h"

namespace annulus {
namespace {

struct Sent {
  uint32_t chunk;
  uint64_t slice;
  size_t bytes;
  bool is_result;
};

// One direction of a link: what was sent and not yet received, and how much was received and not given back.
struct Direction {
  std::deque<Sent> queue;
  size_t held = 0;
  uint64_t next_sent = 0;
  uint64_t next_received = 0;
};

class Job {
 public:
  Job(ScheduleParams params, int ahead, size_t slots, unsigned seed) : n_(params.nranks), slots_(slots), random_(seed) {
    for (params.rank = 0; params.rank < n_; ++params.rank) ranks_.push_back({TwoHopSchedule(params, ahead), 0, {}, {}});
    const size_t outputs = IsAllgather(params.kind) ? static_cast<size_t>(n_) : 1;
    for (Rank& rank : ranks_) {
      rank.arrived.resize(rank.schedule.size());
      rank.written.resize(outputs * params.count);
    }
    is_allreduce_ = IsAllreduce(params.kind);
    directions_.resize(static_cast<size_t>(n_ * n_));
    element_bytes_ = params.element_bytes;
  }

  // Returns "" or what went wrong.
  std::string Run() {
    std::vector<int> order;
    for (int i = 0; i < n_ * n_; ++i) order.push_back(i);
    for (bool moved = true; moved && failure_.empty();) {
      moved = false;
      std::ranges::shuffle(order, random_);
      for (const int i : order) {
        const int rank = i / n_;
        const int peer = i % n_;
        if (rank == peer) {
          moved |= Fold(rank);
        } else {
          moved |= random_() % 2 == 0 ? Send(rank, peer) : Receive(rank, peer);
        }
      }
      if (!moved) moved = MoveAny();
    }
    return failure_.empty() ? WhatIsLeft() : failure_;
  }

 private:
  struct Rank {
    TwoHopSchedule schedule;
    uint64_t folded = 0;
    std::vector<int> arrived;  // By slice of the own chunk: ranks whose part is here.
    std::vector<int> written;  // By element: how often the output was.
  };

  Direction& At(int from, int to) { return directions_[static_cast<size_t>(from * n_ + to)]; }

  bool MoveAny() {
    bool moved = false;
    for (int rank = 0; rank < n_; ++rank) {
      moved |= Fold(rank);
      for (int peer = 0; peer < n_; ++peer) {
        if (peer == rank) continue;
        moved |= Send(rank, peer);
        moved |= Receive(rank, peer);
      }
    }
    return moved;
  }

  bool Send(int rank, int peer) {
    Direction& way = At(rank, peer);
    const Rank& self = ranks_[rank];
    if (way.next_sent == self.schedule.items()) return false;
    Step step;
    if (!self.schedule.SendAt(peer, way.next_sent, &step)) return ++way.next_sent, true;
    const bool is_result = static_cast<int>(step.chunk) == rank;
    if (step.send_to != peer || step.from_output != (is_result && self.schedule.folds())) failure_ = "a wrong send";
    if (step.from_output && step.slice >= self.folded) return false;
    if (way.queue.size() + way.held == slots_) return false;
    ++way.next_sent;
    way.queue.push_back({step.chunk, step.slice, step.bytes, is_result});
    return true;
  }

  bool Receive(int rank, int peer) {
    Direction& way = At(peer, rank);
    Rank& self = ranks_[rank];
    if (way.next_received == self.schedule.items()) return false;
    Step step;
    if (!self.schedule.ReceiveAt(peer, way.next_received, &step)) return ++way.next_received, true;
    if (way.queue.empty()) return false;
    const Sent sent = way.queue.front();
    way.queue.pop_front();
    ++way.next_received;
    if (step.recv_from != peer || step.chunk != sent.chunk || step.slice != sent.slice || step.bytes != sent.bytes ||
        step.store != sent.is_result) {
      failure_ = "the ends of a link disagree";
    }
    if (step.store) {
      Write(&self, step);
    } else {
      ++way.held;
      ++self.arrived[step.slice];
    }
    return true;
  }

  bool Fold(int rank) {
    Rank& self = ranks_[rank];
    if (self.folded == self.schedule.size()) return false;
    Step step;
    if (!self.schedule.At(self.folded, &step)) return ++self.folded, true;
    const bool folds = self.schedule.folds();
    if (folds && self.arrived[step.slice] < n_ - 1) return false;
    if (static_cast<int>(step.chunk) != rank || step.slice != self.folded || step.finish != folds ||
        step.first_rank != (folds ? (rank + 1) % n_ : 0) ||
        (is_allreduce_ && step.input_offset != step.output_offset)) {
      failure_ = "a wrong fold";
    }
    Write(&self, step);
    ++self.folded;
    if (!folds) return true;
    for (int peer = 0; peer < n_; ++peer) {
      if (peer != rank) --At(peer, rank).held;
    }
    return true;
  }

  void Write(Rank* self, const Step& step) {
    for (size_t i = 0; i < step.bytes / element_bytes_; ++i) {
      const size_t element = step.output_offset / element_bytes_ + i;
      if (element >= self->written.size()) {
        failure_ = "a write behind the output";
        return;
      }
      ++self->written[element];
    }
  }

  std::string WhatIsLeft() const {
    for (const Direction& way : directions_) {
      if (!way.queue.empty() || way.held > 0) return "ranks wait for each other, or slices are left";
    }
    for (const Rank& rank : ranks_) {
      if (rank.folded != rank.schedule.size()) return "ranks wait for each other";
      if (std::ranges::any_of(rank.written, [](int times) { return times != 1; })) return "not written once";
    }
    return "";
  }

  const int n_;
  const size_t slots_;
  size_t element_bytes_ = 1;
  bool is_allreduce_ = false;
  std::mt19937 random_;
  std::vector<Rank> ranks_;
  std::vector<Direction> directions_;
  std::string failure_;
};

class TwoHopTest : public testing::TestWithParam<std::tuple<CollectiveKind, int>> {};

TEST_P(TwoHopTest, EveryPartIsFoldedOnceAndReachesAllWhateverTheSlots) {
  ScheduleParams params;
  params.kind = std::get<0>(GetParam());
  params.nranks = std::get<1>(GetParam());
  params.element_bytes = 4;
  params.slice_bytes = 8;
  const size_t n = static_cast<size_t>(params.nranks);
  for (const size_t count : {size_t{0}, size_t{1}, n - 1, n, n + 1, 2 * n, 2 * n + 1, 6 * n - 1, 9 * n + n / 2}) {
    params.count = count;
    for (const int ahead : {1, 2, 4, 7}) {
      for (const size_t slots : {1, 2, 5}) {
        SCOPED_TRACE(testing::Message() << count << " elements, " << ahead << " ahead, " << slots << " slots");
        ASSERT_EQ(Job(params, ahead, slots, static_cast<unsigned>(count + slots)).Run(), "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, TwoHopTest,
                         testing::Combine(testing::Values(CollectiveKind::kAllreduce),
                                          testing::Range(2, kMaxOneHopRanks + 1)));
INSTANTIATE_TEST_SUITE_P(Halves, TwoHopTest,
                         testing::Combine(testing::Values(CollectiveKind::kReduceScatter, CollectiveKind::kAllgather),
                                          testing::Values(2, 3, 4, 7, kMaxOneHopRanks)));

}  // namespace
}  // namespace annulus
