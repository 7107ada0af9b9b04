#include "tests/collectives/algorithms/symbolic_run.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "collectives/algorithms/direct/direct_schedule.h"
#include "collectives/algorithms/one_hop/one_hop_schedule.h"
#include "collectives/algorithms/ring/ring_schedule.h"
#include "collectives/algorithms/two_level/level_schedule.h"

namespace annulus {
namespace {

std::unique_ptr<Schedule> MakeSchedule(const ScheduleParams& params, int channel) {
  switch (params.algorithm) {
    case Algorithm::kOneHop:
      return std::make_unique<OneHopSchedule>(params, channel);
    case Algorithm::kDirect:
      return std::make_unique<DirectSchedule>(params, channel);
    case Algorithm::kTwoLevel:
      return std::make_unique<LevelSchedule>(params, channel);
    default:
      break;
  }
  const auto copy = [](const auto& schedule) -> std::unique_ptr<Schedule> {
    return std::make_unique<std::decay_t<decltype(schedule)>>(schedule);
  };
  return std::visit(copy, MakeRingSchedule(params, channel));
}

}  // namespace

SymbolicRun::SymbolicRun(const ScheduleParams& params, LinkModel model, int slots, int window, const PartCounts& counts)
    : params_(params), model_(model), slots_(slots), window_(window), counts_(counts) {}

const SymbolicRun::Buffer& SymbolicRun::Input(int rank) const {
  return in_place_ ? ranks_[rank].output : ranks_[rank].input;
}

void SymbolicRun::FillParts(int rank) {
  Rank& self = ranks_[rank];
  size_t sent = 0;
  size_t received = 0;
  for (int peer = 0; peer < params_.nranks && !counts_.empty(); ++peer) {
    self.input_parts.push_back({sent, counts_[rank][peer]});
    self.output_parts.push_back({received, counts_[peer][rank]});
    sent += counts_[rank][peer];
    received += counts_[peer][rank];
  }
}

void SymbolicRun::Fill(int rank, bool in_place) {
  const size_t n = params_.nranks;
  const CollectiveKind kind = params_.kind;
  Rank& self = ranks_[rank];
  FillParts(rank);
  size_t input = params_.count * (kind == CollectiveKind::kReduceScatter ? n : 1);
  size_t output = params_.count * (kind == CollectiveKind::kAllgather ? n : 1);
  const auto end = [](const Part& part) { return part.begin + part.elements; };
  if (IsDirect(kind) || kind == CollectiveKind::kReduceScatterv) input = end(self.input_parts.back());
  if (IsDirect(kind) || kind == CollectiveKind::kAllgatherv) output = end(self.output_parts.back());
  if (kind == CollectiveKind::kReduceScatterv) output = self.input_parts[rank].elements;
  if (kind == CollectiveKind::kAllgatherv) input = self.output_parts[rank].elements;
  for (size_t i = 0; i < input; ++i) {
    self.input.push_back(std::to_string(rank) + (Reduces(kind) ? "" : ":" + std::to_string(i)) + " ");
  }
  self.output.assign(output, "poison");
  // The schedule's offsets are relative to each buffer, so in place needs equal offsets: not for kinds with parts.
  if (in_place) self.output = self.input;
}

std::string SymbolicRun::Run(bool in_place, unsigned order_seed) {
  in_place_ = in_place;
  const int lanes = params_.algorithm == Algorithm::kTwoLevel ? 2 : params_.channels;
  ranks_.assign(params_.nranks, Rank());
  for (int r = 0; r < params_.nranks; ++r) {
    Fill(r, in_place);
    ScheduleParams own = params_;
    own.rank = r;
    Rank& self = ranks_[r];
    own.input_parts = self.input_parts.data();
    own.output_parts = self.output_parts.data();
    if (own.algorithm == Algorithm::kDirect) {
      self.round_ends.resize(own.nranks);
      FillRoundEnds(own, self.round_ends.data());
      own.round_ends = self.round_ends.data();
    }
    if (!grid_hosts_.empty()) {
      own.inner = HostGrid(grid_hosts_).Inner(r);
      own.outer = HostGrid(grid_hosts_).Outer(r);
    }
    for (int c = 0; c < lanes; ++c) self.pipelines.push_back({MakeSchedule(own, c), 0, {}, 0});
  }
  std::mt19937 random(order_seed);
  std::vector<std::pair<int, int>> order;
  for (int r = 0; r < params_.nranks; ++r)
    for (int c = 0; c < lanes; ++c) order.emplace_back(r, c);
  while (failure_.empty()) {
    std::shuffle(order.begin(), order.end(), random);
    bool moved = false;
    for (auto [r, c] : order) moved |= Advance(r, c);
    if (!moved) break;
  }
  if (failure_.empty() && !Finished()) failure_ = "deadlock";
  for (const auto& [link, queue] : links_)
    if (failure_.empty() && !queue.empty()) failure_ = "a slice that nobody received";
  return failure_;
}

const SymbolicRun::Element* SymbolicRun::Source(int rank, const Step& step) const {
  const size_t e = params_.element_bytes;
  return step.from_output ? &ranks_[rank].output[step.output_offset / e] : &Input(rank)[step.input_offset / e];
}

bool SymbolicRun::Finished() const {
  for (const Rank& rank : ranks_)
    for (const Pipeline& pipeline : rank.pipelines)
      if (pipeline.next < pipeline.schedule->size() || !pipeline.flights.empty()) return false;
  return true;
}

bool SymbolicRun::Receive(int rank, int channel, Flight* flight) {
  const Step& step = flight->step;
  const Link link{{step.recv_from, rank}, channel};
  Pipeline& pipeline = ranks_[rank].pipelines[channel];
  const bool keeps_slot = IsRendezvous(step.recv_from, channel) && step.reduce && step.send_to >= 0;
  if (keeps_slot && pipeline.held_slots >= static_cast<int>(slots_)) return false;
  std::deque<Slice>& queue = links_[link];
  if (queue.empty()) return false;
  Slice slice = std::move(queue.front());
  queue.pop_front();
  if (slice.chunk != step.chunk || slice.slice != step.slice) failure_ = "slices out of order";
  if (slice.count != step.count) failure_ = "ranks disagree about a count";
  if (slice.data.size() != step.bytes / params_.element_bytes) failure_ = "slice of another size";
  if (IsRendezvous(step.recv_from, channel)) {
    Complete(link);
    if (keeps_slot) ++pipeline.held_slots;
  } else {
    for (const Lent& slot : lent_[link])
      if (slot.ticket == slice.ticket) flight->arrived_in_place = slot.place != nullptr;
  }
  flight->ticket = slice.ticket;
  flight->arrival = std::move(slice.data);
  flight->received = true;
  return true;
}

// Where the receiver is to read what the step sends; null when it goes through a slot.
const SymbolicRun::Element* SymbolicRun::PlaceOf(int rank, const Step& step) const {
  const bool in_place = model_ == LinkModel::kInPlace || model_ == LinkModel::kMixed;
  if (!in_place || params_.algorithm == Algorithm::kOneHop || step.bytes == 0) return nullptr;
  if (step.recv_from < 0) return Source(rank, step);
  return step.store ? &ranks_[rank].output[step.output_offset / params_.element_bytes] : nullptr;
}

void SymbolicRun::Post(int rank, const Link& link, Flight* flight) {
  if (IsRendezvous(rank, link.second)) {
    unsent_[link].push_back(flight);
    return;
  }
  std::deque<Lent>& lent = lent_[link];
  lent.push_back({flight, next_ticket_, PlaceOf(rank, flight->step)});
  GiveBack(&lent);
}

// The receiver has done its work, and needs the slice no more.
void SymbolicRun::Release(const Link& link, const Flight& flight) {
  if (IsRendezvous(link.first.first, link.second)) return;
  std::deque<Lent>& lent = lent_[link];
  for (Lent& slot : lent) {
    if (slot.ticket != flight.ticket) continue;
    slot.released = true;
    if (slot.place != nullptr && !std::equal(flight.arrival.begin(), flight.arrival.end(), slot.place))
      failure_ = "data in place was overwritten before it was read";
  }
  GiveBack(&lent);
}

// Completes the first send of a rendezvous.
void SymbolicRun::Complete(const Link& link) {
  Flight* const flight = unsent_[link].front();
  unsent_[link].pop_front();
  flight->sent = true;
  if (flight->takes_slot) --taken_[link];
  if (flight->sends_arrival) Release({{flight->step.recv_from, link.first.first}, link.second}, *flight);
}

// Completes the sends that can be, in order, and frees their slots.
void SymbolicRun::GiveBack(std::deque<Lent>* lent) {
  for (Lent& slot : *lent) {
    if (slot.completed) continue;
    if (slot.place != nullptr && !slot.released) break;
    slot.completed = slot.flight->sent = true;
  }
  lent->erase(std::remove_if(lent->begin(), lent->end(), [](const Lent& s) { return s.completed && s.released; }),
              lent->end());
}

void SymbolicRun::Fold(int rank, const Step& step) {
  const int n = params_.nranks;
  const size_t e = params_.element_bytes;
  for (size_t i = 0; i < step.bytes / e; ++i) {
    Element sum;
    for (int k = 0; k < n; ++k) {
      const int from = (step.first_rank + k) % n;
      sum +=
          from == rank ? Input(rank)[step.input_offset / e + i] : ranks_[rank].held[from][step.arrival_offset / e + i];
    }
    ranks_[rank].output[step.output_offset / e + i] = sum + (step.finish ? "/" : "");
  }
}

bool SymbolicRun::Execute(int rank, int channel, Flight* flight) {
  const Step& step = flight->step;
  Rank& self = ranks_[rank];
  const Link link{{rank, step.send_to}, channel};
  if (step.send_to >= 0 && !IsRendezvous(rank, channel) && lent_[link].size() >= slots_) return false;
  if (step.send_to >= 0 && step.recv_from >= 0 && IsRendezvous(rank, channel)) {
    flight->takes_slot = step.reduce && !step.store && flight->arrived_in_place;
    flight->sends_arrival = !flight->takes_slot && !(step.reduce && step.store);
    if (flight->takes_slot && taken_[link] >= slots_) return false;
    if (flight->takes_slot) ++taken_[link];
  }
  if (step.kind == Step::Kind::kHold) {
    self.held[step.recv_from] = flight->arrival;
  } else if (step.kind == Step::Kind::kFold) {
    Fold(rank, step);
  } else {
    const size_t e = params_.element_bytes;
    Buffer result(step.bytes / e);
    for (size_t i = 0; i < result.size(); ++i) {
      const bool uses_input = step.recv_from < 0 || step.reduce;
      result[i] = (step.recv_from >= 0 ? flight->arrival[i] : "") + (uses_input ? Source(rank, step)[i] : "") +
                  (step.finish ? "/" : "");
      if (step.store) self.output[step.output_offset / e + i] = result[i];
    }
    if (step.send_to >= 0)
      links_[link].push_back({step.chunk, step.slice, step.count, ++next_ticket_, std::move(result)});
  }
  flight->executed = true;
  flight->sent = step.send_to < 0;
  if (step.send_to >= 0) Post(rank, link, flight);
  if (step.recv_from >= 0 && !flight->sends_arrival) Release({{step.recv_from, rank}, channel}, *flight);
  return true;
}

bool SymbolicRun::Advance(int rank, int channel) {
  Pipeline& pipeline = ranks_[rank].pipelines[channel];
  bool moved = false;
  while (pipeline.flights.size() < window_ && pipeline.next < pipeline.schedule->size()) {
    Flight flight;
    flight.index = pipeline.next++;
    if (pipeline.schedule->At(flight.index, &flight.step)) pipeline.flights.push_back(std::move(flight));
    moved = true;
  }
  bool receive_blocked = false;
  bool send_blocked = false;
  for (Flight& flight : pipeline.flights) {
    const Step& step = flight.step;
    if (flight.executed) continue;
    const bool needs_receive = step.recv_from >= 0;
    if (needs_receive && !flight.received && !receive_blocked) moved |= Receive(rank, channel, &flight);
    const bool ready = (!needs_receive || flight.received) && !(step.send_to >= 0 && send_blocked) &&
                       !(step.awaits > 0 && ranks_[rank].pipelines[1 - channel].StepsDone() < step.awaits) &&
                       !(step.kind == Step::Kind::kFold && &flight != &pipeline.flights.front());
    if (ready) moved |= Execute(rank, channel, &flight);
    receive_blocked |= needs_receive && !flight.received;
    send_blocked |= step.send_to >= 0 && !flight.executed;
  }
  while (!pipeline.flights.empty() && pipeline.flights.front().executed && pipeline.flights.front().sent) {
    const Step& step = pipeline.flights.front().step;
    if (step.recv_from >= 0 && IsRendezvous(step.recv_from, channel) && step.reduce && step.send_to >= 0)
      --pipeline.held_slots;
    pipeline.flights.pop_front();
    moved = true;
  }
  return moved;
}

}  // namespace annulus
