#include "collectives/comm/stream_order.h"

#include <algorithm>
#include <cstdint>

namespace annulus {
namespace {

bool HasStream(const CallArguments& call) { return call.options != nullptr && call.options->on_stream; }

size_t Aligned(size_t bytes) {
  return (bytes + StreamCalls::kAlignment - 1) / StreamCalls::kAlignment * StreamCalls::kAlignment;
}

}  // namespace

void StreamOrder::Open(const MemoryDomains* domains, size_t most_bytes) {
  if (domains == nullptr) return;
  for (MemoryDomain* const domain : domains->devices()) {
    if (calls_ == nullptr) calls_ = domain->OpenStreams(most_bytes);
  }
}

std::unique_lock<std::mutex> StreamOrder::Lock(std::span<const CallArguments> calls) {
  return std::ranges::any_of(calls, HasStream) ? std::unique_lock<std::mutex>(mu_) : std::unique_lock<std::mutex>();
}

StreamOrder::Staged StreamOrder::Arrange(const CallArguments& call, size_t* end) {
  const uintptr_t send = reinterpret_cast<uintptr_t>(call.sendbuf);
  const uintptr_t recv = reinterpret_cast<uintptr_t>(call.recvbuf);
  const size_t send_bytes = call.send_queue != nullptr ? SendEnd(call, rank_, nranks_) : 0;
  const size_t recv_bytes = call.recv_queue != nullptr ? RecvEnd(call, rank_, nranks_) : 0;
  const bool is_in_place = send_bytes > 0 && recv_bytes > 0 && send < recv + recv_bytes && recv < send + send_bytes;
  Staged staged;
  if (is_in_place) {
    const uintptr_t begin = std::min(send, recv);
    staged = {*end + (send - begin), *end + (recv - begin)};
    *end = Aligned(std::max(staged.send_at + send_bytes, staged.recv_at + recv_bytes));
    return staged;
  }
  staged.send_at = *end;
  *end = Aligned(*end + send_bytes);
  staged.recv_at = *end;
  *end = Aligned(*end + recv_bytes);
  return staged;
}

void StreamOrder::Replace(CallArguments* call, const Staged& staged, bool may_do_nothing,
                          const StreamCalls::Place& place) {
  SendParts(*call, rank_, nranks_, &send_parts_);
  RecvParts(*call, rank_, nranks_, &recv_parts_);
  if (call->send_queue != nullptr) {
    // The device only reads it.
    auto* const buffer = static_cast<std::byte*>(const_cast<void*>(call->sendbuf));
    std::byte* const copy = place.staging + staged.send_at;
    for (const BufferPart& part : send_parts_) {
      place.inputs->push_back({buffer + part.begin, copy + part.begin, part.bytes});
    }
    call->sendbuf = copy;
    call->send_queue = nullptr;
  }
  if (call->recv_queue != nullptr) {
    auto* const buffer = static_cast<std::byte*>(call->recvbuf);
    std::byte* const copy = place.staging + staged.recv_at;
    for (const BufferPart& part : recv_parts_) {
      const StreamCopy output{buffer + part.begin, copy + part.begin, part.bytes};
      // What is copied back is then what was there.
      if (may_do_nothing) place.inputs->push_back(output);
      place.outputs->push_back(output);
    }
    call->recvbuf = copy;
    call->recv_queue = nullptr;
  }
}

StreamOrder::Call::~Call() {
  if (place_.call != nullptr) order_->calls_->GiveBack(place_);
}

Status StreamOrder::Call::Stage(std::span<CallArguments> calls, bool may_do_nothing, Deadline until) {
  if (std::ranges::none_of(calls, HasStream)) return Status();
  const auto differs = [&](const CallArguments& call) {
    return !HasStream(call) || call.options->stream != calls.front().options->stream;
  };
  if (differs(calls.front()) || std::ranges::any_of(calls, differs))
    return Status::Invalid("the calls of a group must have the same stream");
  if (order_->calls_ == nullptr) return {Code::kUnsupported, "no device of this process has streams"};
  size_t bytes = 0;
  order_->staged_.clear();
  for (const CallArguments& call : calls) order_->staged_.push_back(order_->Arrange(call, &bytes));
  stream_ = calls.front().options->stream;
  ANNULUS_RETURN_IF_ERROR(order_->calls_->Take(stream_, static_cast<int>(calls.size()), bytes, until, &place_));
  for (size_t i = 0; i < calls.size(); ++i) order_->Replace(&calls[i], order_->staged_[i], may_do_nothing, place_);
  return Status();
}

Status StreamOrder::Call::Enqueue(std::span<Request* const> made, std::span<Request* const> queued) {
  if (place_.call == nullptr) return Status();
  const StreamCalls::Place place = place_;
  place_ = {};
  ANNULUS_RETURN_IF_ERROR(order_->calls_->Enqueue(stream_, place));
  for (Request* const each : made) each->stream = place.call;
  for (Request* const each : queued) each->stream = place.call;
  return Status();
}

}  // namespace annulus
