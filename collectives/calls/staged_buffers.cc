#include "collectives/calls/staged_buffers.h"

#include <algorithm>
#include <cstdint>

namespace annulus {
namespace {

size_t Aligned(size_t bytes) {
  return (bytes + StreamCalls::kAlignment - 1) / StreamCalls::kAlignment * StreamCalls::kAlignment;
}

}  // namespace

size_t StagedBuffers::SendBytesOnDevice(const CallArguments& call) const {
  return call.send_queue != nullptr ? SendEnd(call, rank_, nranks_) : 0;
}

size_t StagedBuffers::RecvBytesOnDevice(const CallArguments& call) const {
  return call.recv_queue != nullptr ? RecvEnd(call, rank_, nranks_) : 0;
}

size_t StagedBuffers::MostBytes(const CallArguments& call) const {
  return Aligned(SendBytesOnDevice(call)) + Aligned(RecvBytesOnDevice(call));
}

StagedBuffers::Place StagedBuffers::Arrange(const CallArguments& call, size_t* end) const {
  const uintptr_t send = reinterpret_cast<uintptr_t>(call.sendbuf);
  const uintptr_t recv = reinterpret_cast<uintptr_t>(call.recvbuf);
  const size_t send_bytes = SendBytesOnDevice(call);
  const size_t recv_bytes = RecvBytesOnDevice(call);
  const bool is_in_place = send_bytes > 0 && recv_bytes > 0 && send < recv + recv_bytes && recv < send + send_bytes;
  Place place;
  if (is_in_place) {
    const uintptr_t begin = std::min(send, recv);
    place = {*end + (send - begin), *end + (recv - begin)};
    *end = Aligned(std::max(place.send_at + send_bytes, place.recv_at + recv_bytes));
    return place;
  }
  place.send_at = *end;
  *end = Aligned(*end + send_bytes);
  place.recv_at = *end;
  *end = Aligned(*end + recv_bytes);
  return place;
}

void StagedBuffers::Replace(CallArguments* call, const Place& place, std::byte* staging,
                            std::vector<StreamCopy>* inputs, std::vector<StreamCopy>* outputs) {
  SendParts(*call, rank_, nranks_, &send_parts_);
  RecvParts(*call, rank_, nranks_, &recv_parts_);
  if (call->send_queue != nullptr) {
    // The device only reads it.
    auto* const buffer = static_cast<std::byte*>(const_cast<void*>(call->sendbuf));
    std::byte* const copy = staging + place.send_at;
    for (const BufferPart& part : send_parts_) inputs->push_back({buffer + part.begin, copy + part.begin, part.bytes});
    call->sendbuf = copy;
    call->send_queue = nullptr;
  }
  if (call->recv_queue != nullptr) {
    auto* const buffer = static_cast<std::byte*>(call->recvbuf);
    std::byte* const copy = staging + place.recv_at;
    for (const BufferPart& part : recv_parts_) outputs->push_back({buffer + part.begin, copy + part.begin, part.bytes});
    call->recvbuf = copy;
    call->recv_queue = nullptr;
  }
}

}  // namespace annulus
