#include "collectives/engine/messages.h"

#include <algorithm>
#include <string>
#include <utility>

namespace annulus {
namespace {

// Times between looks at the stream for which a message waits; nothing but a word in memory tells.
constexpr Nanoseconds kFirstPause = 20 * kMicrosecond;
constexpr Nanoseconds kLongestPause = 500 * kMicrosecond;

}  // namespace

Messages::Messages(MessagesConfig config) : config_(std::move(config)), peers_(static_cast<size_t>(config_.nranks)) {
  active_.reserve(peers_.size());
}

void Messages::Reserve(size_t messages) {
  const std::lock_guard<std::mutex> lock(*config_.mu);
  const size_t needed = inbox_.size() + reserved_ + messages;
  if (needed > inbox_.capacity()) inbox_.reserve(std::max(needed, 2 * inbox_.capacity()));
  reserved_ += messages;
}

bool Messages::HasRoomAgain(const Message& message) const {
  return inbox_.size() + reserved_ < inbox_.capacity() && message.peer >= 0 && peers_[message.peer] != nullptr;
}

bool Messages::ReserveAgain(const Message& message) {
  const bool has_room = HasRoomAgain(message);
  if (has_room) ++reserved_;
  return has_room;
}

AtOnce Messages::MoveOrPost(const Message& message, bool moves, bool has_room) {
  if (has_room) {
    --reserved_;
  } else if (!HasRoomAgain(message)) {
    return AtOnce::kNo;
  }
  const AtOnce moved = moves ? MoveAtOnce(IdlePeerOf(message, inbox_.cend()), message, 0) : AtOnce::kNo;
  if (moved != AtOnce::kNo) return moved;
  inbox_.push_back(message);
  has_inbox_.store(true, std::memory_order_release);
  return AtOnce::kPosted;
}

void Messages::Post(const Message& message) {
  const std::lock_guard<std::mutex> lock(*config_.mu);
  inbox_.push_back(message);
  --reserved_;
  has_inbox_.store(true, std::memory_order_release);
}

MessagePeer* Messages::PeerOf(int rank) {
  std::unique_ptr<MessagePeer>& peer = peers_[rank];
  if (peer == nullptr) {
    peer = std::make_unique<MessagePeer>(rank, config_, &shared_);
    peer_bytes_.fetch_add(sizeof(MessagePeer) + 2 * MessageRunner::MemoryBytes(config_.plan),
                          std::memory_order_relaxed);
  }
  return peer.get();
}

void Messages::Activate(MessagePeer* peer) {
  if (std::ranges::find(active_, peer) == active_.end()) active_.push_back(peer);
}

MessagePeer* Messages::IdlePeerOf(const Message& message, std::vector<Message>::const_iterator end) {
  if (message.peer < 0 || message.tag != 0) return nullptr;
  MessagePeer* const peer = peers_[message.peer].get();
  if (peer == nullptr) return nullptr;  // The first message makes the peer.
  const bool is_idle = message.sends ? peer->sender().is_idle() : peer->receiver().is_idle() && !HasAny();
  if (!is_idle) return nullptr;
  const auto is_before = [&message](const Message& each) {
    return each.sends == message.sends && (each.peer == message.peer || each.peer == kAnyPeer);
  };
  return std::any_of(inbox_.cbegin(), end, is_before) ? nullptr : peer;
}

AtOnce Messages::MoveAtOnce(const Message& message, int polls) {
  return MoveAtOnce(IdlePeerOf(message, inbox_.cend()), message, polls);
}

AtOnce Messages::MovePostedAtOnce(const void* cookie, int polls) {
  const auto found = std::ranges::find(inbox_, cookie, &Message::cookie);
  if (found == inbox_.end()) return AtOnce::kNo;
  const AtOnce moved = MoveAtOnce(IdlePeerOf(*found, found), *found, polls);
  if (moved == AtOnce::kNo) return AtOnce::kNo;
  inbox_.erase(found);
  has_inbox_.store(!inbox_.empty(), std::memory_order_release);
  return moved;
}

AtOnce Messages::MoveAtOnce(MessagePeer* peer, const Message& message, int polls) {
  if (peer == nullptr || !message.IsReady() || message.input.queue != nullptr || message.output.queue != nullptr)
    return AtOnce::kNo;
  if (!message.sends) return peer->receiver().ReceiveAtOnce(message, polls) ? AtOnce::kDone : AtOnce::kNo;
  const AtOnce moved = peer->sender().SendAtOnce(message);
  if (moved == AtOnce::kBegun) Activate(peer);
  return moved;
}

bool Messages::HasOnlyBegun() const {
  return !active_.empty() && !HasAny() &&
         std::ranges::all_of(active_, [](const MessagePeer* peer) { return peer->has_only_begun(); });
}

void* Messages::EndBegun() {
  if (!HasOnlyBegun()) return nullptr;
  for (MessagePeer*& peer : active_) {
    void* const cookie = peer->sender().EndBegun();
    if (cookie == nullptr) continue;
    std::swap(peer, active_.back());
    active_.pop_back();
    return cookie;
  }
  return nullptr;
}

void Messages::EmptyInbox() {
  if (!has_inbox_.load(std::memory_order_acquire)) return;
  const std::lock_guard<std::mutex> lock(*config_.mu);
  for (const Message& message : inbox_) {
    if (message.peer == kAnyPeer) {
      for (int rank = 0; rank < config_.nranks; ++rank) {
        if (rank != config_.rank) Activate(PeerOf(rank));
      }
      shared_.pool.Add(message, &shared_.any_posted);
      shared_.any_posted.back().order = ++shared_.order;
      continue;
    }
    MessagePeer* const peer = PeerOf(message.peer);
    message.sends ? peer->sender().Post(message) : peer->receiver().Post(message);
    Activate(peer);
  }
  inbox_.clear();
  has_inbox_.store(false, std::memory_order_relaxed);
}

void Messages::AdmitAny(bool* moved) {
  while (!shared_.any_posted.empty() && shared_.any_posted.front().message.IsReady()) {
    uint64_t first_own = UINT64_MAX;
    for (MessagePeer* const peer : active_) {
      peer->receiver().Admit(moved);
      first_own = std::min(first_own, peer->receiver().first_posted());
    }
    if (first_own < shared_.any_posted.front().order) return;
    bool is_given = false;
    for (size_t i = 0; i < peers_.size() && !is_given; ++i) {
      MessagePeer* const peer = peers_[(turn_ + i) % peers_.size()].get();
      is_given = peer != nullptr && peer->receiver().GiveHeld(&shared_.any_posted);
      if (is_given) Activate(peer);
    }
    *moved = true;
    if (is_given) continue;
    const Message message = shared_.any_posted.front().message;
    MoveFirst(&shared_.any_posted, &shared_.any_waiting);
    const auto has_taken = [&message](MessagePeer* peer) { return peer->receiver().FirstTaken(message) != nullptr; };
    if (std::ranges::none_of(active_, has_taken))
      static_cast<void>(SetNextDeadline(config_, message.tag, &shared_.any_waiting));
  }
}

Status Messages::CheckAny() {
  if (shared_.any_waiting.empty()) return Status();
  const auto is_left = [](const std::unique_ptr<MessagePeer>& peer) { return peer != nullptr && peer->loss().ok(); };
  if (std::ranges::any_of(peers_, is_left)) return Status();
  Status loss;
  for (const auto& peer : peers_) {
    if (peer != nullptr) loss = peer->loss();
  }
  failed_ = CallOf(shared_.any_waiting.front().message, 1, 0);
  failed_.kind = CollectiveKind::kRecv;
  return {loss.code(), "no rank is left that could send a message: " + loss.message(), loss.peer(), 0};
}

Status Messages::Progress(bool* moved) {
  EmptyInbox();
  if (!shared_.any_posted.empty()) AdmitAny(moved);
  ++turn_;
  const size_t number = active_.size();
  for (size_t i = 0; i < number; ++i) {
    MessagePeer* const peer = active_[(turn_ + i) % number];
    Status status = peer->Progress(moved);
    if (status.ok()) continue;
    failed_ = peer->failed();
    return status;
  }
  ANNULUS_RETURN_IF_ERROR(CheckAny());
  if (!HasAny()) std::erase_if(active_, [](const MessagePeer* peer) { return !peer->busy(); });
  return Status();
}

int Messages::AwaitedPeer() const {
  const auto is_awaited = [](const MessagePeer* peer) { return peer->busy() && !peer->AwaitsStream(); };
  const auto found = std::ranges::find_if(active_, is_awaited);
  return found == active_.end() ? -1 : (*found)->rank();
}

bool Messages::Arm() {
  if (has_inbox_.load(std::memory_order_acquire)) return false;
  const auto looks = [](const MessagePeer* peer) { return peer->AwaitsStream(); };
  const bool has_streams = std::ranges::any_of(active_, looks) || !shared_.any_posted.empty();
  pause_ = has_streams ? std::clamp(2 * pause_, kFirstPause, kLongestPause) : 0;
  look_at_ = has_streams ? Now() + pause_ : kNoDeadline;
  // Arm every link, even after one that has something to do.
  const auto arm = [](MessagePeer* peer) { return peer->Arm(); };
  return std::count_if(active_.begin(), active_.end(), arm) == static_cast<ptrdiff_t>(active_.size());
}

Deadline Messages::deadline() const {
  Deadline first = kNoDeadline;
  for (const MessagePeer* peer : active_) first = std::min(first, peer->deadline());
  for (const QueuedMessage& each : shared_.any_waiting) first = std::min(first, each.deadline);
  return first;
}

Status Messages::Late(Nanoseconds now) {
  for (MessagePeer* const peer : active_) {
    const Status late = peer->Late(now);
    if (late.ok()) continue;
    failed_ = peer->failed();
    return late;
  }
  for (const QueuedMessage& each : shared_.any_waiting) {
    if (now <= each.deadline) continue;
    failed_ = CallOf(each.message, 1, 0);
    failed_.kind = CollectiveKind::kRecv;
    const int32_t tag = each.message.tag;
    const auto is_blocked = [](MessagePeer* peer) { return peer->receiver().is_blocked(); };
    return {Code::kTimeout, "no rank sent a message" + (tag < 0 ? "" : " with tag " + std::to_string(tag)) +
                                " before the deadline of a receive from any rank" +
                                (std::ranges::any_of(active_, is_blocked) ? kNoRoom : "")};
  }
  return Status();
}

}  // namespace annulus
