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
  flight->source = step.recv_from >= 0 ? work_->links->At(step.recv_from, channel_) : nullptr;
  flight->target = step.send_to >= 0 ? work_->links->At(step.send_to, channel_) : nullptr;
  ANNULUS_CHECK(step.kind == Step::Kind::kRelay);
  ANNULUS_CHECK((step.recv_from < 0 || flight->source) && (step.send_to < 0 || flight->target));
  flight->recv = nullptr;
  const bool is_posted = flight->index == 0 && first_ != nullptr;
  if (is_posted) {
    flight->recv = first_;
  } else if (step.recv_from >= 0) {
    flight->recv = &flight->own_recv;
    *flight->recv = Recv();
    const Work::Place output = step.store ? work_->OutputAt(step.output_offset) : Work::Place();
    const bool lands = step.store && !step.reduce && step.bytes > 0 && output.bytes >= step.bytes &&
                       MayLand(flight->source, output.kind(), output.data, step.bytes);
    flight->recv->landing = lands ? const_cast<std::byte*>(output.data) : nullptr;
    flight->recv->capacity = static_cast<uint32_t>(step.bytes);
  }
  flight->send = Send();
  flight->slot = nullptr;
  flight->streams_slot = false;
  flight->submission = Submission();
  flight->submitted = flight->worked = 0;
  flight->recv_posted = is_posted;
  flight->verified = flight->received = flight->planned = flight->writes_output = false;
  flight->sends_arrival = flight->released = flight->send_posted = flight->done = false;
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
    if (flight.source == endpoint && flight.recv_posted && flight.recv->code != Code::kOk) return true;
    if (flight.target == endpoint && flight.send_posted && flight.send.code != Code::kOk) return true;
  }
  return false;
}

int Pipeline::AwaitedPeer() const {
  for (size_t i = head_; i != tail_; ++i) {
    const Flight& flight = flights_[i % window_];
    if (flight.done) continue;
    if (flight.recv != nullptr && !flight.received) return flight.step.recv_from;
    return MustAwait(flight.step) ? -1 : flight.step.send_to;
  }
  return -1;
}

Status Pipeline::Receive(Flight* flight, Order* order, bool* moved) {
  if (!flight->recv_posted) {
    if (order->receive_blocked) return Status();
    Status posted = flight->source->PostRecv(flight->recv);
    if (posted.would_block()) {
      order->receive_blocked = true;
      return Status();
    }
    ANNULUS_RETURN_IF_ERROR(std::move(posted));
    flight->recv_posted = *moved = true;
  }
  const Recv& recv = *flight->recv;
  if (recv.started && !flight->verified) {
    const uint32_t note = work_->notes != nullptr ? ChunkOf(recv.tag) : 0;
    const Tag tag = note != 0 ? WithChunk(recv.tag, flight->step.chunk) : recv.tag;
    ANNULUS_RETURN_IF_ERROR(
        CheckSlice({TagOf(flight->step), flight->step.bytes}, {tag, recv.bytes}, flight->step.recv_from));
    if (note != 0) work_->notes->Hear(note);
    flight->verified = *moved = true;
  }
  if (recv.code == Code::kOk && !flight->received) {
    flight->received = true;
    work_->monitor->Received(flight->step.recv_from, recv.bytes);
    if (const Nanoseconds now = work_->TraceClock(); now != 0)
      work_->TraceSlice(TraceEvent::Kind::kReceived, flight->step, channel_, flight->step.recv_from, recv.bytes, now);
  }
  return Status();
}

Status Pipeline::AdvanceFlight(Flight* flight, Order* order, bool* moved) {
  if (flight->recv != nullptr) ANNULUS_RETURN_IF_ERROR(Receive(flight, order, moved));
  const bool sends = flight->target != nullptr;
  const bool started = flight->recv == nullptr || flight->verified;
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
  if (sends && !flight->send_posted) order->send_blocked = true;
  return Status();
}

Status Pipeline::Plan(Flight* flight) {
  flight->slot = nullptr;
  flight->writes_output = flight->step.store && !Landed(*flight);
  return flight->target != nullptr ? PlanSend(flight) : Status();
}

// Chooses the memory that the send reads, and flight->slot when the work has to write it.
Status Pipeline::PlanSend(Flight* flight) {
  const Step& step = flight->step;
  Endpoint* const target = flight->target;
  const Limits& limits = target->limits();
  const bool any_memory = limits.sends_from.Has(MemoryKind::kHost);
  InPlace* const in_place = any_memory ? nullptr : target->shortcuts().in_place;
  const auto sends_from = [&](const Work::Place& place) {
    if (place.bytes < step.bytes) return false;
    if (limits.sends_from.Has(place.kind())) return true;
    if (in_place == nullptr) return false;
    const bool lends = work_->lends && place.kind() == MemoryKind::kHost && in_place->Lends(place.data, step.bytes);
    return lends ||
           (work_->sends_in_place && limits.in_place.Has(place.kind()) && in_place->SendsFrom(place.data, step.bytes));
  };
  // A buffer that the step does not use may be null.
  const Work::Place input = flight->recv == nullptr ? SourceAt(step, 0) : Work::Place();
  const Work::Place output = step.store ? work_->OutputAt(step.output_offset) : Work::Place();
  const bool passes_arrival = flight->recv != nullptr && limits.sends_from.Has(KindOf(ArrivalQueue(*flight))) &&
                              !(step.reduce && flight->recv->read_only);
  const bool sends_output = step.reduce || Landed(*flight) || (flight->recv != nullptr && !any_memory);
  if (step.store && sends_output && sends_from(output)) {
    flight->send.data = output.data;
  } else if (passes_arrival) {
    flight->send.data = flight->recv->data;
    flight->sends_arrival = true;
    if (step.reduce) flight->slot = flight->recv->data;
  } else if (flight->recv == nullptr && !Scales(step) && sends_from(input)) {
    flight->send.data = input.data;
  } else {
    std::byte* slot = nullptr;
    ANNULUS_RETURN_IF_ERROR(target->AcquireSlot(&slot));
    flight->send.data = flight->slot = slot;
    flight->streams_slot = in_place != nullptr && in_place->StreamsSlots();
  }
  return Status();
}

Status Pipeline::WorkOn(Flight* flight, bool* moved) {
  const size_t bytes = flight->step.bytes;
  const size_t available = flight->recv != nullptr ? flight->recv->arrived : bytes;
  if (flight->slot == nullptr && !flight->writes_output) {
    if (flight->worked != available) *moved = true;
    flight->worked = available;
    return Status();
  }
  const size_t end = available == bytes ? bytes : available / kPieceAlignment * kPieceAlignment;
  for (;;) {
    if (flight->submission.pending()) {
      ANNULUS_RETURN_IF_ERROR(flight->submission.Poll());
      if (flight->submission.pending()) return Status();
      flight->worked = flight->submitted;
      *moved = true;
    }
    if (end == flight->submitted || (end < bytes && end - flight->submitted < kPieceBytes)) return Status();
    Status submitted = SubmitPiece(flight, end);
    if (submitted.would_block()) return Status();
    ANNULUS_RETURN_IF_ERROR(std::move(submitted));
    *moved = true;
  }
}

// Submits the work up to `end`, or up to the end of contiguous user memory before it.
Status Pipeline::SubmitPiece(Flight* flight, size_t end) {
  const Step& step = flight->step;
  const size_t begin = flight->submitted;
  size_t bytes = end - begin;
  const bool uses_input = UsesInput(*flight);
  const Work::Place input = uses_input ? SourceAt(step, begin) : Work::Place();
  const Work::Place output = flight->writes_output ? work_->OutputAt(step.output_offset + begin) : Work::Place();
  if (uses_input) bytes = std::min(bytes, input.bytes);
  if (flight->writes_output) bytes = std::min(bytes, output.bytes);
  SliceOp op;
  int destinations = 0;
  const bool onto_itself = flight->recv == nullptr && output.data == input.data && !Scales(step);
  if (flight->writes_output && !onto_itself) {
    // Not if it is sent from there.
    op.streams[destinations] = work_->streams_output && (flight->target == nullptr || flight->slot != nullptr);
    op.dst[destinations++] = const_cast<std::byte*>(output.data);
  }
  if (flight->slot != nullptr) {
    op.streams[destinations] = flight->streams_slot;
    op.dst[destinations++] = flight->slot + begin;
  }
  if (flight->recv != nullptr) op.inline_src[op.num_sources++] = flight->recv->data + begin;
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
    ANNULUS_RETURN_IF_ERROR(flight->submission.Submit(queue, op));
  }
  if (clock != 0 && destinations > 0)
    work_->TraceSlice(step.reduce ? TraceEvent::Kind::kReduced : TraceEvent::Kind::kCopied, step, channel_,
                      step.recv_from, bytes, clock);
  flight->submitted = begin + bytes;
  if (!flight->submission.pending()) flight->worked = flight->submitted;
  return Status();
}

Status Pipeline::Forward(Flight* flight, bool* moved) {
  const uint32_t ready = static_cast<uint32_t>(flight->worked);
  if (!flight->send_posted) {
    if (ready == 0 && flight->step.bytes > 0) return Status();
    flight->send.tag = TagOf(flight->step);
    flight->send.bytes = static_cast<uint32_t>(flight->step.bytes);
    flight->send.ready = ready;
    Status posted = flight->target->PostSend(&flight->send);
    if (posted.would_block()) return Status();
    flight->send_posted = *moved = posted.ok();
    return posted;
  }
  flight->send.ready = ready;
  return Status();
}

Status Pipeline::Retire(Flight* flight, bool* moved) {
  const bool worked = flight->worked == flight->step.bytes;
  const bool received = flight->recv == nullptr || flight->recv->code == Code::kOk;
  const bool sent = flight->target == nullptr || (flight->send_posted && flight->send.code == Code::kOk);
  if (!worked || !received) return Status();
  const bool has_slot = flight->recv != nullptr && !Landed(*flight);
  if (has_slot && !flight->released && (!flight->sends_arrival || sent)) {
    flight->source->Release(flight->recv);
    flight->released = *moved = true;
    if (flight->recv->code != Code::kOk) return Work::GaveUpInPlace(flight->recv->code, flight->step.recv_from);
  }
  if (!sent) return Status();
  flight->done = *moved = true;
  if (flight->target == nullptr) return Status();
  work_->monitor->Sent(flight->step.send_to, flight->step.bytes);
  if (const Nanoseconds now = work_->TraceClock(); now != 0)
    work_->TraceSlice(TraceEvent::Kind::kSent, flight->step, channel_, flight->step.send_to, flight->step.bytes, now);
  return Status();
}

}  // namespace annulus
