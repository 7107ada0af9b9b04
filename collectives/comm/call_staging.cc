#include "collectives/comm/call_staging.h"

#include <algorithm>
#include <new>

namespace annulus {
namespace {

bool IsOnDevice(const CallArguments& call) { return call.send_queue != nullptr || call.recv_queue != nullptr; }

}  // namespace

void CallStaging::Open(SlotMemory* memory, size_t bytes) {
  if (bytes == 0) return;
  memory_ = std::make_unique<SlotBlock>(memory, bytes);
  if (memory_->data() == nullptr) memory_.reset();
}

DomainQueue* CallStaging::Stage() {
  DomainQueue* queue = nullptr;
  size_t bytes = 0;
  for (const CallArguments& call : calls_) {
    DomainQueue* const of_call = QueueFor(call.recv_queue, call.send_queue);
    if (of_call == nullptr) continue;
    // The buffers are on several devices.
    if (queue != nullptr && queue != of_call) return nullptr;
    queue = of_call;
    bytes += buffers_.MostBytes(call);
    if (bytes > memory_->bytes()) return nullptr;
  }
  if (queue == nullptr) return nullptr;
  inputs_.clear();
  outputs_.clear();
  size_t end = 0;
  for (CallArguments& call : calls_) {
    const StagedBuffers::Place place = buffers_.Arrange(call, &end);
    buffers_.Replace(&call, place, memory_->data(), &inputs_, &outputs_);
  }
  return queue;
}

Buffers CallStaging::BuffersFor(const CallArguments& call, const Request* fused) {
  Buffers buffers = BuffersOf(call);
  if (fused != nullptr) buffers.segments = &fused->segments;
  const auto is_on_device = [](const Request* member) { return IsOnDevice(member->arguments); };
  const bool is_on_host = fused == nullptr ? !IsOnDevice(call) : std::ranges::none_of(fused->members, is_on_device);
  if (memory_ == nullptr || is_on_host) return buffers;
  try {
    calls_.clear();
    if (fused == nullptr) {
      calls_.push_back(call);
    } else {
      for (const Request* const member : fused->members) calls_.push_back(member->arguments);
    }
    DomainQueue* const queue = Stage();
    if (queue == nullptr) return buffers;
    Buffers staged = BuffersOf(calls_.front());
    staged.staging = {queue, inputs_, outputs_};
    if (fused == nullptr) return staged;
    tensors_.clear();
    for (const CallArguments& each : calls_) tensors_.push_back({each.sendbuf, each.recvbuf, each.count});
    segments_.Assign(tensors_, TypeBytes(call.type), nranks_);
    staged.segments = &segments_;
    return staged;
  } catch (const std::bad_alloc&) {  // Slice by slice needs none.
    return buffers;
  }
}

}  // namespace annulus
