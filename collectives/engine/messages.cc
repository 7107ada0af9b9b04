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

Status OutOfMemory() { return {Code::kOutOfMemory, "no memory is left for a message that was posted"}; }

}  // namespace

Messages::Messages(MessagesConfig config)
    : config_(std::move(config)),
      num_peers_(HasMesh(config_.nranks, config_.plan) ? config_.nranks : 0),
      peers_(static_cast<size_t>(config_.nranks)) {
  active_.reserve(peers_.size());
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

// What needs memory comes before a message is taken on.
Status Messages::AcceptPosted() {
  try {
    for (Message message; config_.first_posted(&message);) {
      const bool from_any = message.peer == kAnyPeer;
      for (int rank = 0; from_any && rank < config_.nranks; ++rank) {
        if (rank != config_.rank) Activate(PeerOf(rank));
      }
      MessagePeer* const peer = from_any ? nullptr : PeerOf(message.peer);
      if (!shared_.pool.Prepare()) return OutOfMemory();
      config_.accept_first();
      if (from_any) {
        shared_.pool.Post(message, &shared_.any_posted, &shared_.order);
        continue;
      }
      message.sends ? peer->sender().Post(message) : peer->receiver().Post(message);
      Activate(peer);
    }
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
  return Status();
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
  if (config_.has_posted->load(std::memory_order_acquire)) ANNULUS_RETURN_IF_ERROR(AcceptPosted());
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
  if (config_.has_posted->load(std::memory_order_acquire)) return false;
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
