#include "collectives/algorithms/one_hop/hop_peer.h"

#include <algorithm>
#include <cstring>

#include "collectives/algorithms/slice_tag.h"

namespace annulus {
namespace {

// A plain copy of the work's elements.
SliceOp CopyOp(const Work& work, const std::byte* from, std::byte* to, size_t bytes) {
  SliceOp op;
  op.dst[0] = to;
  op.inline_src[0] = from;
  op.num_sources = 1;
  op.count = bytes / work.element_bytes;
  op.type = work.type;
  op.op = work.op;
  return op;
}

Tag TagOf(const Work& work, const Step& step) {
  Call call = work.call;
  call.count = step.count;
  return PackTag(call, {step.chunk, step.slice, 0});
}

}  // namespace

void HopPeer::Start(const Work* work, const Step* send, const Step* receive) {
  work_ = work;
  send_step_ = send != nullptr ? *send : Step();
  recv_step_ = receive != nullptr ? *receive : Step();
  outgoing_ = annulus::Send();
  incoming_ = Recv();
  slot_ = nullptr;
  packed_.Reset(0);
  stored_.Reset(0);
  send_posted_ = recv_posted_ = received_ = false;
}

bool HopPeer::SendsFrom(const Work::Place& source) const {
  if (send_step_.bytes == 0 || source.bytes < send_step_.bytes || Scales()) return false;
  const Limits& limits = endpoint_->limits();
  if (limits.sends_from.Has(source.kind())) return true;
  return lends_ && in_place_ != nullptr && limits.in_place.Has(source.kind()) &&
         in_place_->SendsFrom(source.data, send_step_.bytes);
}

Status HopPeer::Send(bool* moved) {
  if (send_posted_) return SendOutcome();
  if (!sends()) return Status();
  if (outgoing_.data == nullptr && slot_ == nullptr) {
    const Work::Place source = SourceAt(0);
    if (SendsFrom(source)) {
      outgoing_.data = source.data;
    } else {
      Status acquired = endpoint_->AcquireSlot(send_step_.bytes, &slot_);
      if (acquired.would_block()) return Status();
      ANNULUS_RETURN_IF_ERROR(std::move(acquired));
      packed_.Reset(send_step_.bytes);
    }
  }
  if (slot_ != nullptr) ANNULUS_RETURN_IF_ERROR(Pack(moved));
  return slot_ == nullptr || packed_.done() ? PostSend(moved) : Status();
}

Status HopPeer::Pack(bool* moved) {
  const auto submit = [this](size_t begin, size_t* end, Submission* piece) {
    const Work::Place source = SourceAt(begin);
    *end = begin + std::min(*end - begin, source.bytes);
    const bool streams = in_place_ != nullptr && in_place_->StreamsSlots();
    if (source.queue == nullptr && !streams && work_->custom.user == nullptr && !Scales()) {
      // Groups have many small pieces.
      std::memcpy(slot_ + begin, source.data, *end - begin);
      return Status();
    }
    SliceOp op = CopyOp(*work_, source.data, slot_ + begin, *end - begin);
    if (!send_step_.from_output) op.custom = work_->custom;
    if (Scales()) op.scaled_source = 0;
    op.streams[0] = streams;
    return piece->Submit(source.queue, op);
  };
  return packed_.Advance(submit, moved);
}

Status HopPeer::PostSend(bool* moved) {
  if (slot_ != nullptr) outgoing_.data = slot_;
  outgoing_.tag = TagOf(*work_, send_step_);
  outgoing_.bytes = outgoing_.ready = static_cast<uint32_t>(send_step_.bytes);
  Status posted = endpoint_->PostSend(&outgoing_);
  if (posted.would_block()) return Status();
  ANNULUS_RETURN_IF_ERROR(std::move(posted));
  slot_ = nullptr;
  send_posted_ = *moved = true;
  work_->monitor->Sent(send_step_.send_to, send_step_.bytes);
  if (const Nanoseconds now = work_->TraceClock(); now != 0) {
    work_->TraceSlice(TraceEvent::Kind::kSent, send_step_, 0, send_step_.send_to, send_step_.bytes, now);
  }
  return Status();
}

Status HopPeer::Receive(bool* moved) {
  if (!receives()) return Status();
  if (!recv_posted_) {
    const Work::Place output = recv_step_.store ? work_->OutputAt(recv_step_.output_offset) : Work::Place();
    const bool lands = recv_step_.store && recv_step_.bytes > 0 && output.bytes >= recv_step_.bytes &&
                       MayLand(endpoint_, output.kind(), output.data, recv_step_.bytes);
    incoming_.landing = lands ? const_cast<std::byte*>(output.data) : nullptr;
    incoming_.capacity = static_cast<uint32_t>(recv_step_.bytes);
    Status posted = endpoint_->PostRecv(&incoming_);
    if (posted.would_block()) return Status();
    ANNULUS_RETURN_IF_ERROR(std::move(posted));
    recv_posted_ = *moved = true;
  }
  if (!received_ && incoming_.started) {
    ANNULUS_RETURN_IF_ERROR(CheckSlice({TagOf(*work_, recv_step_), recv_step_.bytes}, {incoming_.tag, incoming_.bytes},
                                       recv_step_.recv_from));
    if (incoming_.code != Code::kOk) return Status();
    received_ = *moved = true;
    stored_.Reset(recv_step_.store && !landed() ? recv_step_.bytes : 0);
    work_->monitor->Received(recv_step_.recv_from, recv_step_.bytes);
    if (const Nanoseconds now = work_->TraceClock(); now != 0) {
      work_->TraceSlice(TraceEvent::Kind::kReceived, recv_step_, 0, recv_step_.recv_from, recv_step_.bytes, now);
    }
  }
  if (!received_ || stored_.done()) return Status();
  const auto submit = [this](size_t begin, size_t* end, Submission* piece) {
    const Work::Place output = work_->OutputAt(recv_step_.output_offset + begin);
    *end = begin + std::min(*end - begin, output.bytes);
    const SliceOp op = CopyOp(*work_, incoming_.data + begin, const_cast<std::byte*>(output.data), *end - begin);
    return piece->Submit(output.queue, op);
  };
  return stored_.Advance(submit, moved);
}

Status HopPeer::Release() {
  if (!receives() || landed()) return Status();
  endpoint_->Release(&incoming_);
  return incoming_.code == Code::kOk ? Status() : Work::GaveUpInPlace(incoming_.code, recv_step_.recv_from);
}

}  // namespace annulus
