#include "collectives/engine/messages.h"

#include <algorithm>
#include <string>
#include <utility>

namespace annulus {

Messages::Messages(MessagesConfig config)
    : config_(std::move(config)), lanes_(2 * static_cast<size_t>(config_.nranks)) {}

void Messages::Post(const Message& message) {
  std::lock_guard<std::mutex> lock(inbox_mu_);
  inbox_.push_back(message);
  has_inbox_.store(true, std::memory_order_release);
}

Messages::Lane* Messages::LaneOf(int peer, bool sends) {
  std::unique_ptr<Lane>& lane = lanes_[2 * static_cast<size_t>(peer) + (sends ? 1 : 0)];
  if (lane == nullptr) {
    lane = std::make_unique<Lane>();
    lane->peer = peer;
    lane->sends = sends;
    Endpoint* const endpoint = config_.links->At(peer, MessageChannel(config_.plan));
    lane->runner = std::make_unique<MessageRunner>(endpoint, config_.plan);
    lane_bytes_.fetch_add(sizeof(Lane) + MessageRunner::MemoryBytes(config_.plan), std::memory_order_relaxed);
  }
  return lane.get();
}

void Messages::TakeInbox() {
  if (!has_inbox_.load(std::memory_order_acquire)) return;
  std::lock_guard<std::mutex> lock(inbox_mu_);
  for (const Message& message : inbox_) {
    Lane* const lane = LaneOf(message.peer, message.sends);
    lane->queue.push_back(message);
    if (lane->queue.size() > 1) continue;
    active_.push_back(lane);
    Begin(lane);
  }
  inbox_.clear();
  has_inbox_.store(false, std::memory_order_relaxed);
}

void Messages::Begin(Lane* lane) {
  const Message& message = lane->queue.front();
  lane->begin = Now();
  const Nanoseconds own = message.timeout;
  const Nanoseconds timeout = own > 0 ? own : config_.timeout;
  lane->deadline = timeout > kNoDeadline - lane->begin ? kNoDeadline : lane->begin + timeout;
  Work& work = lane->work;
  work.call = Call();
  work.call.sequence = ++lane->number;
  work.call.kind = CollectiveKind::kSend;
  work.call.type = message.type;
  work.call.count = message.count;
  work.input = message.input;
  work.output = message.output;
  work.type = message.type;
  work.element_bytes = TypeBytes(message.type);
  work.rank = config_.rank;
  work.nranks = config_.nranks;
  work.links = config_.links;
  work.monitor = config_.monitor;
  // Data that fits the slots is sent without waiting for the receive, as users of blocking sends expect.
  const size_t held = static_cast<size_t>(config_.plan.slots) * DirectSliceBytes(config_.plan);
  work.sends_in_place = message.count * work.element_bytes > held;
  ScheduleParams params;
  params.kind = message.sends ? CollectiveKind::kSend : CollectiveKind::kRecv;
  params.algorithm = Algorithm::kMessage;
  params.rank = config_.rank;
  params.nranks = config_.nranks;
  params.root = message.peer;
  params.count = message.count;
  params.element_bytes = work.element_bytes;
  params.slice_bytes = DirectSliceBytes(config_.plan);
  lane->runner->Start(params, &work);
}

Status Messages::Progress(bool* moved) {
  TakeInbox();
  for (size_t i = 0; i < active_.size();) {
    Lane* const lane = active_[i];
    Status status = Advance(lane, moved);
    if (!status.ok()) {
      Blame(*lane);
      return status;
    }
    if (lane->queue.empty()) {
      active_[i] = active_.back();
      active_.pop_back();
    } else {
      ++i;
    }
  }
  return Status();
}

Status Messages::Advance(Lane* lane, bool* moved) {
  ANNULUS_RETURN_IF_ERROR(lane->runner->Progress(moved));
  if (lane->runner->done()) {
    *moved = true;
    if (config_.monitor->trace() != nullptr) TraceMessage(*lane);
    void* const cookie = lane->queue.front().cookie;
    lane->queue.pop_front();
    if (!lane->queue.empty()) Begin(lane);
    config_.done(cookie);
  }
  return Status();
}

void Messages::TraceMessage(const Lane& lane) const {
  TraceEvent event;
  event.kind = TraceEvent::Kind::kMessage;
  event.channel = MessageChannel(config_.plan);
  event.peer = lane.peer;
  event.call = lane.work.call;
  event.call.kind = lane.sends ? CollectiveKind::kSend : CollectiveKind::kRecv;
  event.begin = lane.begin;
  event.took = Now() - lane.begin;
  config_.monitor->trace()->Add(event);
}

bool Messages::Arm() {
  if (has_inbox_.load(std::memory_order_acquire)) return false;
  const auto arm = [](Lane* lane) { return lane->runner->Arm(); };
  // Arm every lane, even after one that has something to do.
  return std::count_if(active_.begin(), active_.end(), arm) == static_cast<ptrdiff_t>(active_.size());
}

Deadline Messages::deadline() const {
  Deadline first = kNoDeadline;
  for (const Lane* lane : active_) first = std::min(first, lane->deadline);
  return first;
}

void Messages::Blame(const Lane& lane) {
  failed_ = lane.work.call;
  failed_.kind = lane.sends ? CollectiveKind::kSend : CollectiveKind::kRecv;
}

Status Messages::Late(Nanoseconds now) {
  for (const Lane* lane : active_) {
    if (now <= lane->deadline) continue;
    Blame(*lane);
    const std::string peer = "rank " + std::to_string(lane->peer);
    return {Code::kTimeout,
            lane->sends ? peer + " did not receive message #" + std::to_string(lane->number) + " before its deadline"
                        : peer + " did not send message #" + std::to_string(lane->number) + " before its deadline",
            lane->peer, 0};
  }
  return Status();
}

}  // namespace annulus
