#include "collectives/engine/messages.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

namespace annulus {
namespace {

// Times between looks at the stream for which a message waits; nothing but a word in memory tells.
constexpr Nanoseconds kFirstPause = 20 * kMicrosecond;
constexpr Nanoseconds kLongestPause = 500 * kMicrosecond;

// The message's identity on the wire, the same at both ends.
Call CallOf(const Message& message, uint64_t number) {
  Call call;
  call.sequence = number;
  call.kind = CollectiveKind::kSend;
  call.type = message.type;
  call.count = message.count;
  return call;
}

}  // namespace

Messages::Messages(MessagesConfig config)
    : config_(std::move(config)), routes_(2 * static_cast<size_t>(config_.nranks)) {
  active_.reserve(routes_.size());
}

void Messages::Reserve(size_t messages) {
  std::lock_guard<std::mutex> lock(inbox_mu_);
  const size_t needed = inbox_.size() + reserved_ + messages;
  if (needed > inbox_.capacity()) inbox_.reserve(std::max(needed, 2 * inbox_.capacity()));
  reserved_ += messages;
}

bool Messages::HasRoomAgain(const Message& message) const {
  return inbox_.size() + reserved_ < inbox_.capacity() &&
         routes_[2 * static_cast<size_t>(message.peer) + (message.sends ? 1 : 0)] != nullptr;
}

bool Messages::ReserveAgain(const Message& message) {
  const std::lock_guard<std::mutex> lock(inbox_mu_);
  const bool has_room = HasRoomAgain(message);
  if (has_room) ++reserved_;
  return has_room;
}

AtOnce Messages::MoveOrPost(const Message& message, int polls, bool moves, bool has_room) {
  const std::lock_guard<std::mutex> lock(inbox_mu_);
  if (has_room) {
    --reserved_;
  } else if (!HasRoomAgain(message)) {
    return AtOnce::kNo;
  }
  const AtOnce moved = moves ? MoveAtOnce(IdleRouteOf(message, inbox_.cend()), message, polls) : AtOnce::kNo;
  if (moved != AtOnce::kNo) return moved;
  inbox_.push_back(message);
  has_inbox_.store(true, std::memory_order_release);
  return AtOnce::kPosted;
}

void Messages::Unreserve() {
  const std::lock_guard<std::mutex> lock(inbox_mu_);
  --reserved_;
}

void Messages::Post(const Message& message) {
  std::lock_guard<std::mutex> lock(inbox_mu_);
  inbox_.push_back(message);
  --reserved_;
  has_inbox_.store(true, std::memory_order_release);
}

Messages::Route* Messages::RouteOf(int peer, bool sends) {
  std::unique_ptr<Route>& route = routes_[2 * static_cast<size_t>(peer) + (sends ? 1 : 0)];
  if (route == nullptr) {
    route = std::make_unique<Route>();
    route->peer = peer;
    route->sends = sends;
    Endpoint* const endpoint = config_.links->At(peer, MessageChannel(config_.plan));
    route->runner = std::make_unique<MessageRunner>(endpoint, config_.plan);
    route_bytes_.fetch_add(sizeof(Route) + MessageRunner::MemoryBytes(config_.plan), std::memory_order_relaxed);
  }
  return route.get();
}

Messages::Route* Messages::IdleRouteOf(const Message& message, std::vector<Message>::const_iterator end) {
  Route* const route = routes_[2 * static_cast<size_t>(message.peer) + (message.sends ? 1 : 0)].get();
  if (route == nullptr || !route->queue.empty()) return nullptr;  // The first message makes the route.
  const auto is_before = [&message](const Message& each) {
    return each.peer == message.peer && each.sends == message.sends;
  };
  return std::any_of(inbox_.cbegin(), end, is_before) ? nullptr : route;
}

AtOnce Messages::MoveAtOnce(const Message& message, int polls) {
  const std::lock_guard<std::mutex> lock(inbox_mu_);
  return MoveAtOnce(IdleRouteOf(message, inbox_.cend()), message, polls);
}

AtOnce Messages::MovePostedAtOnce(const void* cookie, int polls) {
  const std::lock_guard<std::mutex> lock(inbox_mu_);
  const auto found = std::ranges::find(inbox_, cookie, &Message::cookie);
  if (found == inbox_.end()) return AtOnce::kNo;
  const AtOnce moved = MoveAtOnce(IdleRouteOf(*found, found), *found, polls);
  if (moved == AtOnce::kNo) return AtOnce::kNo;
  inbox_.erase(found);
  has_inbox_.store(!inbox_.empty(), std::memory_order_release);
  return moved;
}

AtOnce Messages::MoveAtOnce(Route* route, const Message& message, int polls) {
  if (route == nullptr || !message.IsReady() || message.input.queue != nullptr || message.output.queue != nullptr)
    return AtOnce::kNo;
  const Call call = CallOf(message, route->number + 1);
  const size_t bytes = message.count * TypeBytes(message.type);
  if (message.sends) return SendAtOnce(route, message, call, bytes);
  if (!route->runner->ReceiveAtOnce(call, message.output.data, bytes, polls)) return AtOnce::kNo;
  ++route->number;
  config_.monitor->Received(message.peer, bytes);
  return AtOnce::kDone;
}

AtOnce Messages::SendAtOnce(Route* route, const Message& message, const Call& call, size_t bytes) {
  const bool may_begin = !route->runner->sends_whole();
  if (may_begin) {
    // Before anything is sent, since it may need memory.
    if (message.cookie == nullptr) return AtOnce::kNo;
    try {
      route->queue.push_back(message);
    } catch (const std::bad_alloc&) {
      return AtOnce::kNo;
    }
  }
  const AtOnce moved = route->runner->SendAtOnce(call, message.input.data, bytes);
  if (moved != AtOnce::kNo) config_.monitor->Sent(message.peer, bytes);
  if (moved == AtOnce::kBegun) {
    active_.push_back(route);
    BeginWork(route);
    return moved;
  }
  if (may_begin) route->queue.pop_back();
  if (moved == AtOnce::kDone) ++route->number;
  return moved;
}

void Messages::TakeInbox() {
  if (!has_inbox_.load(std::memory_order_acquire)) return;
  std::lock_guard<std::mutex> lock(inbox_mu_);
  for (const Message& message : inbox_) {
    Route* const route = RouteOf(message.peer, message.sends);
    route->queue.push_back(message);
    if (route->queue.size() > 1) continue;
    active_.push_back(route);
    BeginNext(route);
  }
  inbox_.clear();
  has_inbox_.store(false, std::memory_order_relaxed);
}

void Messages::BeginWork(Route* route) {
  const Message& message = route->queue.front();
  route->begin = Now();
  const Nanoseconds own = message.timeout;
  const Nanoseconds timeout = own > 0 ? own : config_.timeout;
  route->deadline = timeout > kNoDeadline - route->begin ? kNoDeadline : route->begin + timeout;
  Work& work = route->work;
  work.call = CallOf(message, ++route->number);
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
}

void Messages::BeginNext(Route* route) {
  route->is_waiting = !route->queue.front().IsReady();
  if (!route->is_waiting) return Begin(route);
  route->deadline = kNoDeadline;
  pause_ = 0;
}

void Messages::Begin(Route* route) {
  BeginWork(route);
  const Message& message = route->queue.front();
  const Work& work = route->work;
  ScheduleParams params;
  params.kind = message.sends ? CollectiveKind::kSend : CollectiveKind::kRecv;
  params.algorithm = Algorithm::kMessage;
  params.rank = config_.rank;
  params.nranks = config_.nranks;
  params.root = message.peer;
  params.count = message.count;
  params.element_bytes = work.element_bytes;
  params.slice_bytes = DirectSliceBytes(config_.plan);
  route->runner->Start(params, &work);
}

Status Messages::Progress(bool* moved) {
  TakeInbox();
  for (size_t i = 0; i < active_.size();) {
    Route* const route = active_[i];
    Status status = Advance(route, moved);
    if (!status.ok()) {
      Blame(*route);
      return status;
    }
    if (route->queue.empty()) {
      active_[i] = active_.back();
      active_.pop_back();
    } else {
      ++i;
    }
  }
  return Status();
}

Status Messages::Advance(Route* route, bool* moved) {
  if (route->is_waiting) {
    if (!route->queue.front().IsReady()) return Status();
    BeginNext(route);
    *moved = true;
  }
  ANNULUS_RETURN_IF_ERROR(route->runner->Progress(moved));
  if (route->runner->done()) {
    *moved = true;
    if (config_.monitor->trace() != nullptr) TraceMessage(*route);
    void* const cookie = route->queue.front().cookie;
    route->queue.pop_front();
    if (!route->queue.empty()) BeginNext(route);
    config_.done(cookie);
  }
  return Status();
}

void Messages::TraceMessage(const Route& route) const {
  TraceEvent event;
  event.kind = TraceEvent::Kind::kMessage;
  event.channel = MessageChannel(config_.plan);
  event.peer = route.peer;
  event.label = route.queue.front().label;
  event.call = route.work.call;
  event.call.kind = route.sends ? CollectiveKind::kSend : CollectiveKind::kRecv;
  event.begin = route.begin;
  event.took = Now() - route.begin;
  config_.monitor->trace()->Add(event);
}

int Messages::AwaitedPeer() const {
  const auto found = std::ranges::find(active_, false, &Route::is_waiting);
  return found == active_.end() ? -1 : (*found)->peer;
}

bool Messages::Arm() {
  if (has_inbox_.load(std::memory_order_acquire)) return false;
  const auto waits = [](const Route* route) { return route->is_waiting; };
  const bool looks = std::ranges::any_of(active_, waits);
  pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
  look_at_ = looks ? Now() + pause_ : kNoDeadline;
  const auto arm = [](Route* route) { return route->is_waiting || route->runner->Arm(); };
  // Arm every route, even after one that has something to do.
  return std::count_if(active_.begin(), active_.end(), arm) == static_cast<ptrdiff_t>(active_.size());
}

Deadline Messages::deadline() const {
  Deadline first = kNoDeadline;
  for (const Route* route : active_) first = std::min(first, route->deadline);
  return first;
}

void Messages::Blame(const Route& route) {
  failed_ = route.work.call;
  failed_.kind = route.sends ? CollectiveKind::kSend : CollectiveKind::kRecv;
}

Status Messages::Late(Nanoseconds now) {
  for (const Route* route : active_) {
    if (now <= route->deadline) continue;
    Blame(*route);
    const std::string peer = "rank " + std::to_string(route->peer);
    return {Code::kTimeout,
            route->sends ? peer + " did not receive message #" + std::to_string(route->number) + " before its deadline"
                         : peer + " did not send message #" + std::to_string(route->number) + " before its deadline",
            route->peer, 0};
  }
  return Status();
}

}  // namespace annulus
