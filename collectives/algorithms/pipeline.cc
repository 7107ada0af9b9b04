#include "collectives/algorithms/pipeline.h"

#include <algorithm>

#include "base/check.h"

namespace annulus {
namespace {

// Work on a partly arrived slice is done in pieces of at least this many bytes, so that each is worth its overhead (a
// few tens of nanoseconds against 16 KiB at about 50 GB/s). Pieces end on a cache line, so elements are never split.
constexpr size_t kPieceBytes = 16 * 1024;
constexpr size_t kPieceAlignment = 64;

}  // namespace

Pipeline::Pipeline(int channel, int window)
    : channel_(channel), window_(window), flights_(std::make_unique<Flight[]>(window)) {}

void Pipeline::Start(const Schedule* schedule, const Work* work, const Pipeline* other, Recv* first) {
  schedule_ = schedule;
  work_ = work;
  other_ = other;
  first_ = first;
  next_step_ = head_ = tail_ = 0;
}

Tag Pipeline::TagOf(const Step& step) const {
  Call call = work_->call;
  call.count = step.count;
  return PackTag(call, {step.chunk, step.slice, static_cast<uint32_t>(channel_)});
}

void Pipeline::Prepare(Flight* flight) {
  const Step& step = flight->step;
  ANNULUS_CHECK(step.kind == Step::Kind::kRelay);
  flight->in = Arrival();
  flight->pieces = Pieces();
  flight->out = Departure();
  flight->planned = flight->done = false;
  if (step.send_to >= 0) flight->out.target = work_->links->At(step.send_to, channel_);
  Arrival& in = flight->in;
  if (step.recv_from >= 0) in.source = work_->links->At(step.recv_from, channel_);
  ANNULUS_CHECK((step.recv_from < 0 || in.source) && (step.send_to < 0 || flight->out.target));
  in.posted = flight->index == 0 && first_ != nullptr;
  if (in.posted) {
    in.recv = first_;
    ANNULUS_CHECK(first_->reader == nullptr || PlaceOfReader(step).queue != nullptr);
  } else if (step.recv_from >= 0) {
    in.recv = &in.own;
    const Work::Place output = step.store ? work_->OutputAt(step.output_offset) : Work::Place();
    const bool lands = step.store && !step.reduce && step.bytes > 0 && output.bytes >= step.bytes &&
                       MayLand(in.source, output.kind(), output.data, step.bytes);
    in.own.landing = lands ? const_cast<std::byte*>(output.data) : nullptr;
    const bool may_read = in.source->limits().in_place.Has(MemoryKind::kDevice);
    in.own.reader = may_read ? PlaceOfReader(step).data : nullptr;
    in.own.capacity = static_cast<uint32_t>(step.bytes);
  }
}

// What goes on without being stored or reduced has nobody to read it.
Work::Place Pipeline::PlaceOfReader(const Step& step) const {
  Work::Place reader;
  for (size_t at = 0; at < step.bytes;) {
    size_t bytes = step.bytes - at;
    Work::Place place;
    if (step.store) {
      place = work_->OutputAt(step.output_offset + at);
      bytes = std::min(bytes, place.bytes);
    }
    if (step.reduce) {
      const Work::Place input = SourceAt(step, at);
      bytes = std::min(bytes, input.bytes);
      if (place.queue == nullptr) place = input;
    }
    if (place.queue == nullptr) return {};
    if (at == 0) reader = place;
    at += bytes;
  }
  return reader;
}

void Pipeline::FillWindow(bool* moved) {
  while (tail_ - head_ < window_ && next_step_ < schedule_->size()) {
    Flight& flight = flights_[tail_ % window_];
    flight.index = next_step_++;
    if (!schedule_->At(flight.index, &flight.step)) continue;
    if (work_->notes != nullptr && flight.step.send_to >= 0) flight.step.chunk = work_->notes->Next();
    Prepare(&flight);
    ++tail_;
    *moved = true;
  }
}

Status Pipeline::Advance(bool* moved) {
  FillWindow(moved);
  Order order;
  for (size_t i = head_; i != tail_; ++i) {
    Flight& flight = flights_[i % window_];
    if (!flight.done) ANNULUS_RETURN_IF_ERROR(AdvanceFlight(&flight, &order, moved));
  }
  while (head_ != tail_ && flights_[head_ % window_].done) ++head_;
  return Status();
}

bool Pipeline::WaitsFor(const Endpoint* endpoint) const {
  for (size_t i = head_; i != tail_; ++i) {
    const Flight& flight = flights_[i % window_];
    if (flight.done) continue;
    if (flight.in.source == endpoint && flight.in.waits()) return true;
    if (flight.out.target == endpoint && flight.out.waits()) return true;
  }
  return false;
}

int Pipeline::AwaitedPeer() const {
  for (size_t i = head_; i != tail_; ++i) {
    const Flight& flight = flights_[i % window_];
    if (flight.done) continue;
    if (flight.in.recv != nullptr && !flight.in.complete) return flight.step.recv_from;
    return MustAwait(flight.step) ? -1 : flight.step.send_to;
  }
  return -1;
}

Status Pipeline::Receive(Flight* flight, Order* order, bool* moved) {
  const Step& step = flight->step;
  Arrival& in = flight->in;
  if (!in.posted) {
    if (order->receive_blocked) return Status();
    Status posted = in.source->PostRecv(in.recv);
    if (posted.would_block()) {
      order->receive_blocked = true;
      return Status();
    }
    ANNULUS_RETURN_IF_ERROR(std::move(posted));
    in.posted = *moved = true;
  }
  const Recv& recv = *in.recv;
  if (recv.started && !in.verified) {
    const uint32_t note = work_->notes != nullptr ? ChunkOf(recv.tag) : 0;
    const Tag tag = note != 0 ? WithChunk(recv.tag, step.chunk) : recv.tag;
    ANNULUS_RETURN_IF_ERROR(CheckSlice({TagOf(step), step.bytes}, {tag, recv.bytes}, step.recv_from));
    if (note != 0) work_->notes->Hear(note);
    in.verified = *moved = true;
  }
  if (recv.code == Code::kOk && !in.complete) {
    in.complete = true;
    work_->monitor->Received(step.recv_from, recv.bytes);
    if (const Nanoseconds now = work_->TraceClock(); now != 0)
      work_->TraceSlice(TraceEvent::Kind::kReceived, step, channel_, step.recv_from, recv.bytes, now);
  }
  return Status();
}

Status Pipeline::AdvanceFlight(Flight* flight, Order* order, bool* moved) {
  if (flight->in.recv != nullptr) ANNULUS_RETURN_IF_ERROR(Receive(flight, order, moved));
  const bool sends = flight->out.target != nullptr;
  const bool started = flight->in.recv == nullptr || flight->in.verified;
  if (!flight->planned && started && !(sends && order->send_blocked) && !MustAwait(flight->step)) {
    Status planned = Plan(flight);
    if (!planned.ok() && !planned.would_block()) return planned;
    flight->planned = planned.ok();
  }
  if (flight->planned) {
    ANNULUS_RETURN_IF_ERROR(WorkOn(flight, moved));
    if (sends) ANNULUS_RETURN_IF_ERROR(Forward(flight, moved));
    ANNULUS_RETURN_IF_ERROR(Retire(flight, moved));
  }
  if (sends && !flight->out.posted) order->send_blocked = true;
  return Status();
}

Status Pipeline::Plan(Flight* flight) {
  flight->out.slot = nullptr;
  flight->pieces.write_output = flight->step.store && !flight->in.landed();
  return flight->out.target != nullptr ? PlanSend(flight) : Status();
}

// Chooses the memory that the send reads, and flight->out.slot when the work has to write it.
Status Pipeline::PlanSend(Flight* flight) {
  const Arrival& in = flight->in;
  Departure& out = flight->out;
  Endpoint* const target = out.target;
  const Step& step = flight->step;
  const Limits& limits = target->limits();
  const bool any_memory = limits.sends_from.Has(MemoryKind::kHost);
  InPlace* const in_place = any_memory ? nullptr : target->shortcuts().in_place;
  const auto sends_from = [&](const Work::Place& place) {
    if (place.bytes < step.bytes) return false;
    if (limits.sends_from.Has(place.kind())) return true;
    if (in_place == nullptr || step.is_copied) return false;
    const bool is_whole = in.recv == nullptr || in.recv->arrived == step.bytes;
    const bool may_lend = work_->lends && is_whole && place.kind() == MemoryKind::kHost;
    return (may_lend && in_place->Lends(place.data, step.bytes)) ||
           (work_->sends_in_place && limits.in_place.Has(place.kind()) && in_place->SendsFrom(place.data, step.bytes));
  };
  // A buffer that the step does not use may be null.
  const Work::Place input = in.recv == nullptr ? SourceAt(step, 0) : Work::Place();
  const Work::Place output = step.store ? work_->OutputAt(step.output_offset) : Work::Place();
  const bool passes_arrival = in.recv != nullptr && limits.sends_from.Has(KindOf(ArrivalQueue(*flight))) &&
                              !(step.reduce && in.recv->read_only);
  const bool sends_output = step.reduce || in.landed() || (in.recv != nullptr && !any_memory);
  if (step.store && sends_output && sends_from(output)) {
    out.send.data = output.data;
  } else if (passes_arrival) {
    out.send.data = in.recv->data;
    out.sends_arrival = true;
    if (step.reduce) out.slot = in.recv->data;
  } else if (in.recv == nullptr && !Scales(step) && sends_from(input)) {
    out.send.data = input.data;
  } else {
    std::byte* slot = nullptr;
    ANNULUS_RETURN_IF_ERROR(target->AcquireSlot(step.bytes, &slot));
    out.send.data = out.slot = slot;
    out.streams_slot = in_place != nullptr && in_place->StreamsSlots();
  }
  return Status();
}

Status Pipeline::WorkOn(Flight* flight, bool* moved) {
  Pieces& pieces = flight->pieces;
  const size_t bytes = flight->step.bytes;
  const size_t available = flight->in.recv != nullptr ? flight->in.recv->arrived : bytes;
  if (flight->out.slot == nullptr && !pieces.write_output) {
    if (pieces.finished != available) *moved = true;
    pieces.finished = available;
    return Status();
  }
  const size_t end = available == bytes ? bytes : available / kPieceAlignment * kPieceAlignment;
  for (;;) {
    if (pieces.latest.pending()) {
      ANNULUS_RETURN_IF_ERROR(pieces.latest.Poll());
      if (pieces.latest.pending()) return Status();
      pieces.finished = pieces.submitted;
      *moved = true;
    }
    if (end == pieces.submitted || (end < bytes && end - pieces.submitted < kPieceBytes)) return Status();
    Status submitted = SubmitPiece(flight, end);
    if (submitted.would_block()) return Status();
    ANNULUS_RETURN_IF_ERROR(std::move(submitted));
    *moved = true;
  }
}

// Submits the work up to `end`, or up to the end of contiguous user memory before it.
Status Pipeline::SubmitPiece(Flight* flight, size_t end) {
  const Arrival& in = flight->in;
  const Departure& out = flight->out;
  Pieces& pieces = flight->pieces;
  const Step& step = flight->step;
  const size_t begin = pieces.submitted;
  size_t bytes = end - begin;
  const bool uses_input = UsesInput(*flight);
  const Work::Place input = uses_input ? SourceAt(step, begin) : Work::Place();
  const Work::Place output = pieces.write_output ? work_->OutputAt(step.output_offset + begin) : Work::Place();
  if (uses_input) bytes = std::min(bytes, input.bytes);
  if (pieces.write_output) bytes = std::min(bytes, output.bytes);
  SliceOp op;
  int destinations = 0;
  const bool onto_itself = in.recv == nullptr && output.data == input.data && !Scales(step);
  if (pieces.write_output && !onto_itself) {
    // Not if it is sent from there.
    op.streams[destinations] = work_->streams_output && (out.target == nullptr || out.slot != nullptr);
    op.dst[destinations++] = const_cast<std::byte*>(output.data);
  }
  if (out.slot != nullptr) {
    op.streams[destinations] = out.streams_slot;
    op.dst[destinations++] = out.slot + begin;
  }
  if (in.recv != nullptr) op.inline_src[op.num_sources++] = in.recv->data + begin;
  if (uses_input) {
    if (Scales(step)) op.scaled_source = op.num_sources;
    op.inline_src[op.num_sources++] = input.data;
  }
  op.count = bytes / work_->element_bytes;
  op.type = work_->type;
  op.op = work_->op;
  op.divisor = step.finish ? work_->divisor : 0;
  op.custom = work_->custom;
  const Nanoseconds clock = work_->TraceClock();
  if (destinations > 0) {
    DomainQueue* const queue = QueueFor(output.queue, QueueFor(input.queue, ArrivalQueue(*flight)));
    ANNULUS_RETURN_IF_ERROR(pieces.latest.Submit(queue, op));
  }
  if (clock != 0 && destinations > 0)
    work_->TraceSlice(step.reduce ? TraceEvent::Kind::kReduced : TraceEvent::Kind::kCopied, step, channel_,
                      step.recv_from, bytes, clock);
  pieces.submitted = begin + bytes;
  if (!pieces.latest.pending()) pieces.finished = pieces.submitted;
  return Status();
}

Status Pipeline::Forward(Flight* flight, bool* moved) {
  Departure& out = flight->out;
  const uint32_t ready = static_cast<uint32_t>(flight->pieces.finished);
  if (!out.posted) {
    if (ready == 0 && flight->step.bytes > 0) return Status();
    out.send.tag = TagOf(flight->step);
    out.send.bytes = static_cast<uint32_t>(flight->step.bytes);
    out.send.ready = ready;
    Status posted = out.target->PostSend(&out.send);
    if (posted.would_block()) return Status();
    out.posted = *moved = posted.ok();
    return posted;
  }
  out.send.ready = ready;
  return Status();
}

Status Pipeline::Retire(Flight* flight, bool* moved) {
  const Step& step = flight->step;
  Arrival& in = flight->in;
  const Departure& out = flight->out;
  if (out.waits()) ANNULUS_RETURN_IF_ERROR(Work::OutcomeOfSend(out.send.code, step.send_to));
  if (flight->pieces.finished != step.bytes || !in.is_over()) return Status();
  const bool has_slot = in.recv != nullptr && !in.landed();
  if (has_slot && !in.released && (!out.sends_arrival || out.is_over())) {
    in.source->Release(in.recv);
    in.released = *moved = true;
    if (in.recv->code != Code::kOk) return Work::GaveUpInPlace(in.recv->code, step.recv_from);
  }
  if (!out.is_over()) return Status();
  flight->done = *moved = true;
  if (out.target == nullptr) return Status();
  work_->monitor->Sent(step.send_to, step.bytes);
  if (const Nanoseconds now = work_->TraceClock(); now != 0)
    work_->TraceSlice(TraceEvent::Kind::kSent, step, channel_, step.send_to, step.bytes, now);
  return Status();
}

}  // namespace annulus
