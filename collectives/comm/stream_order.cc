#include "collectives/comm/stream_order.h"

#include <algorithm>
#include <iterator>

namespace annulus {
namespace {

bool HasStream(const CallArguments& call) { return call.options != nullptr && call.options->on_stream; }

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
  order_->places_.clear();
  for (const CallArguments& call : calls) order_->places_.push_back(order_->buffers_.Arrange(call, &bytes));
  stream_ = calls.front().options->stream;
  ANNULUS_RETURN_IF_ERROR(order_->calls_->Take(stream_, static_cast<int>(calls.size()), bytes, until, &place_));
  for (size_t i = 0; i < calls.size(); ++i)
    order_->buffers_.Replace(&calls[i], order_->places_[i], place_.staging, place_.inputs, place_.outputs);
  // What is copied back is then what was there.
  if (may_do_nothing) std::ranges::copy(*place_.outputs, std::back_inserter(*place_.inputs));
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
