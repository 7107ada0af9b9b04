#include "tests/verbs/cost/slice_costs.h"

#include <string>

#include "transport/memory/memory.h"
#include "transport/verbs/verbs.h"

namespace annulus {

std::unique_ptr<SliceLink> SliceLink::Open(const SlicePattern& pattern) {
  std::unique_ptr<SliceLink> made(new SliceLink(pattern));
  const auto make = [&pattern](TransportConfig config) {
    config.continues = pattern.continues;
    config.settings.Set("verbs_device", std::string(pattern.ports));
    config.settings.Set("reconnect_ms", pattern.continues ? 20'000 : 0);
    config.settings.Set("verbs_read_bytes", pattern.reads ? int64_t{pattern.bytes} : 0);
    return CreateVerbsTransportOver(StraightVerbs(), "", config);
  };
  made->link_ = TransportLink::Open(make, nullptr, {.slot_bytes = kSlotBytes, .slots = kSlots});
  if (made->link_ == nullptr) return nullptr;
  for (End& end : made->ends_) {
    end.sends.resize(static_cast<size_t>(pattern.window));
    end.recvs.resize(static_cast<size_t>(pattern.window));
    void* memory = nullptr;
    if (pattern.registered && !TestRegistry().Allocate(2 * kSlotBytes, &memory).ok()) return nullptr;
    end.memory = static_cast<std::byte*>(memory);
  }
  return made;
}

SliceLink::~SliceLink() {
  if (link_ == nullptr) return;
  for (const int side : {0, 1}) CloseWholly(link_->end(side));
  for (const End& end : ends_) {
    if (end.memory != nullptr) (void)TestRegistry().Free(end.memory);
  }
}

bool SliceLink::StepSends(Endpoint* endpoint, End* end, uint64_t to_send) {
  const auto window = static_cast<uint64_t>(pattern_.window);
  while (end->sent < end->posted && end->sends[end->sent % window].code == Code::kOk) ++end->sent;
  while (end->posted < to_send && end->posted - end->sent < window) {
    std::byte* data = end->memory;
    if (data == nullptr && !endpoint->AcquireSlot(Endpoint::kWholeSlot, &data).ok()) return true;  // Later.
    if (data == end->memory && !endpoint->shortcuts().in_place->SendsFrom(data, pattern_.bytes)) return false;
    Send& send = end->sends[end->posted % window];
    send = Send();
    send.data = data;
    send.bytes = send.ready = pattern_.bytes;
    if (!endpoint->PostSend(&send).ok()) return false;
    ++end->posted;
  }
  return true;
}

bool SliceLink::StepReceives(Endpoint* endpoint, End* end, uint64_t to_receive) {
  const auto window = static_cast<uint64_t>(pattern_.window);
  while (end->received < end->expected && end->recvs[end->received % window].code == Code::kOk) {
    Recv* const recv = &end->recvs[end->received++ % window];
    if (recv->data != recv->landing) endpoint->Release(recv);
  }
  while (end->expected < to_receive && end->expected - end->received < window) {
    Recv& recv = end->recvs[end->expected % window];
    recv = Recv();
    recv.capacity = kSlotBytes;
    if (pattern_.reads) recv.landing = end->memory + kSlotBytes;
    if (!endpoint->PostRecv(&recv).ok()) return false;
    ++end->expected;
  }
  return true;
}

bool SliceLink::Step(int side, uint64_t to_send, uint64_t to_receive) {
  Endpoint* const endpoint = &link_->end(side);
  End* const end = &ends_[static_cast<size_t>(side)];
  bool moved = false;
  bool lives =
      StepReceives(endpoint, end, to_receive) && StepSends(endpoint, end, to_send) && endpoint->Progress(&moved).ok();
  for (int i = 0; lives && i < pattern_.empty_rounds; ++i) lives = endpoint->Progress(&moved).ok();
  return lives;
}

bool SliceLink::Run(uint64_t slices) {
  for (End& end : ends_) end.posted = end.sent = end.expected = end.received = 0;
  const uint64_t back = pattern_.both_ways ? slices : 0;
  const End& first = ends_[0];
  const End& second = ends_[1];
  while (first.sent < slices || first.received < back || second.sent < back || second.received < slices) {
    if (!Step(0, slices, back) || !Step(1, back, slices)) return false;
  }
  return true;
}

double TicksOfTheClock() {
  constexpr int kCalls = 100'000;
  ibv_cq* queue = nullptr;
  ibv_context* const context = StraightVerbs()->open_device(nullptr);
  queue = StraightVerbs()->create_cq(context, 1, nullptr, nullptr, 0);
  const uint64_t inside = CountsOfStraightNic().ticks;
  const uint64_t begin = Ticks();
  for (int i = 0; i < kCalls; ++i) (void)ibv_poll_cq(queue, 0, nullptr);
  const uint64_t all = Ticks() - begin;
  const uint64_t attributed = CountsOfStraightNic().ticks - inside;
  StraightVerbs()->destroy_cq(queue);
  StraightVerbs()->close_device(context);
  return static_cast<double>(all - attributed) / kCalls;
}

}  // namespace annulus
