#include "collectives/comm/graph_replays.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/thread.h"

namespace annulus {
namespace {

// Launches that wait are looked at so often. It decides how late a deadline is noticed.
constexpr Nanoseconds kLookInterval = 100 * kMillisecond;
// A gate closes as soon as the device has passed it.
constexpr Nanoseconds kGatePause = kMillisecond;

std::string NameOf(const CallArguments& call) {
  const std::string kind = KindName(call.kind);
  const std::string label = call.label() != nullptr ? call.label() : "";
  return label.empty() ? kind : kind + " '" + label + "'";
}

std::string NameOf(const GraphReplays::Captured& captured) {
  std::string name;
  for (const Request* const model : captured.models) name += (name.empty() ? "" : ", ") + NameOf(model->arguments);
  return captured.models.size() > 1 ? "a group of " + name : name;
}

}  // namespace

Status GraphReplays::Start() {
  const std::lock_guard<std::mutex> lock(start_mu_);
  if (thread_.joinable() || is_stopping_) return Status();
  return StartThread(
      "the thread for graphs", [this] { Thread(); }, &thread_);
}

// Removes an entry for which there was no memory.
struct GraphReplays::Added {
  ~Added() {
    if (keeps) return;
    replays->Erase(capture, entry);
    replays->EraseEmpty();
  }

  GraphReplays* replays;
  Capture* capture;
  std::list<Entry>::iterator entry;
  bool keeps = false;
};

void GraphReplays::Add(Captured captured) {
  const std::lock_guard<std::mutex> lock(mu_);
  const uint64_t id = captured.capture;
  auto capture = std::ranges::find(captures_, id, &Capture::id);
  if (capture == captures_.end()) capture = captures_.insert(captures_.end(), Capture{id, {}, {}});
  const auto entry = capture->entries.insert(capture->entries.end(), Entry{std::move(captured), {}});
  Added undo{this, &*capture, entry};
  for (const Request* const model : entry->captured.models) AddToLanes(model->arguments, &*capture, &*entry);
  undo.keeps = true;
  has_captured_.store(true, std::memory_order_relaxed);
}

void GraphReplays::AddTo(Lane* lane, Entry* entry) {
  if (std::ranges::find(lane->entries, entry) != lane->entries.end()) return;
  entry->lanes.reserve(entry->lanes.size() + 1);
  lane->entries.push_back(entry);
  entry->lanes.push_back(lane);
}

// A receive from any rank keeps its order with those from each.
void GraphReplays::AddToLanes(const CallArguments& call, Capture* capture, Entry* entry) {
  const CollectiveKind kind = IsMessage(call.kind) ? call.kind : CollectiveKind::kNone;
  const int peer = IsMessage(call.kind) ? call.root : 0;
  const auto find = [&](int of) {
    return std::ranges::find_if(capture->lanes, [&](const Lane& lane) { return lane.kind == kind && lane.peer == of; });
  };
  if (find(peer) == capture->lanes.end()) {
    capture->lanes.push_back({kind, peer, {}});
    Lane* const fresh = &capture->lanes.back();
    const auto from_any = find(ANNULUS_ANY_PEER);
    if (kind == CollectiveKind::kRecv && from_any != capture->lanes.end() && &*from_any != fresh) {
      for (Entry* const other : from_any->entries) AddTo(fresh, other);
    }
  }
  for (Lane& lane : capture->lanes) {
    const bool is_from_any = kind == CollectiveKind::kRecv && peer == ANNULUS_ANY_PEER;
    if (lane.kind == kind && (lane.peer == peer || is_from_any)) AddTo(&lane, entry);
  }
}

bool GraphReplays::Remove(const GraphCall* call) {
  const std::lock_guard<std::mutex> lock(mu_);
  for (Capture& capture : captures_) {
    const auto is_it = [call](const Entry& each) { return each.captured.call == call; };
    const auto found = std::ranges::find_if(capture.entries, is_it);
    if (found == capture.entries.end()) continue;
    Erase(&capture, found);
    EraseEmpty();
    return true;
  }
  return false;
}

void GraphReplays::Erase(Capture* capture, std::list<Entry>::iterator entry) {
  for (Lane& lane : capture->lanes) {
    const auto found = std::ranges::find(lane.entries, &*entry);
    if (found == lane.entries.end()) continue;
    if (static_cast<size_t>(found - lane.entries.begin()) < lane.next) --lane.next;
    lane.entries.erase(found);
    if (lane.next == lane.entries.size()) lane.next = 0;
  }
  capture->entries.erase(entry);
}

void GraphReplays::EraseEmpty() {
  std::erase_if(captures_, [](const Capture& capture) { return capture.entries.empty(); });
}

void GraphReplays::Stop() {
  const std::lock_guard<std::mutex> start(start_mu_);
  {
    const std::lock_guard<std::mutex> lock(mu_);
    is_stopping_ = true;
  }
  bell_->Ring();
  if (thread_.joinable()) thread_.join();
}

void GraphReplays::Thread() {
  GraphBell::Rings seen;
  for (Deadline until = kNoDeadline;;) {
    seen = bell_->Await(seen, until);
    std::vector<Captured> gone;
    {
      const std::lock_guard<std::mutex> lock(mu_);
      if (is_stopping_) return;
      watch_.seen = seen;
      try {
        until = BeginAll();
        gone = TakeGone();
      } catch (const std::bad_alloc&) {  // Of words, or of the list: nothing is lost, and there is another look.
        until = DeadlineAfter(kLookInterval);
      }
    }
    for (const Captured& each : gone) config_.forget(each);
  }
}

Deadline GraphReplays::BeginAll() {
  watch_.is_soon = false;
  while (Entry* const next = FindNext()) Begin(next);
  if (watch_.seen.launches == watch_.begun) return kNoDeadline;
  if (Now() >= watch_.look_at) LookAtWaiting();
  if (watch_.seen.launches == watch_.begun) return kNoDeadline;
  return watch_.is_soon ? DeadlineAfter(kGatePause) : watch_.look_at;
}

void GraphReplays::Begin(Entry* entry) {
  ++entry->taken;
  ++watch_.begun;
  entry->waits_until = 0;
  for (Lane* const lane : entry->lanes) lane->next = (lane->next + 1) % lane->entries.size();
  config_.replay(entry->captured);
}

// Only the first of a lane can be next.
GraphReplays::Entry* GraphReplays::FindNext() {
  for (Capture& capture : captures_) {
    for (const Lane& lane : capture.lanes) {
      if (lane.entries.empty()) continue;
      Entry* const entry = lane.entries[lane.next];
      const GraphCall& call = *entry->captured.call;
      if (call.launches() == entry->taken || HasCrossed(*entry) || !IsNext(*entry) || !call.IsIdle()) continue;
      if (call.IsGateClosed() || call.IsOpenForGood()) return entry;
      watch_.is_soon = true;
    }
  }
  return nullptr;
}

bool GraphReplays::IsNext(const Entry& entry) {
  return std::ranges::all_of(entry.lanes, [&](const Lane* lane) { return lane->entries[lane->next] == &entry; });
}

// Once gates are open for good, launches come though the calls of earlier ones have not ended.
bool GraphReplays::HasCrossed(const Entry& entry) {
  const GraphCall& call = *entry.captured.call;
  const bool is_early = call.launches() - entry.taken > 1 || (call.launches() > entry.taken && !call.IsIdle());
  if (!is_early || call.IsOpenForGood()) return false;
  if (watch_.has_failed) return !call.IsIdle();
  Fail("a launch of a CUDA graph came to " + NameOf(entry.captured) +
       " before an earlier launch had left it: two executable graphs of one captured graph were under way at a time");
  return true;
}

void GraphReplays::Fail(const std::string& why) {
  if (std::exchange(watch_.has_failed, true)) return;
  config_.fail(why);
}

std::string GraphReplays::WhyItWaits(const Entry& entry) {
  std::string why = "a launch of a CUDA graph waited " + std::to_string(entry.captured.timeout / kMillisecond) +
                    " ms for its turn at " + NameOf(entry.captured);
  for (const Lane* const lane : entry.lanes) {
    const Entry* const first = lane->entries[lane->next];
    if (first == &entry) continue;
    return why + ": no launch came to " + NameOf(first->captured) +
           ", which was captured before it; a node may have been left out of the graph";
  }
  return why + ": an earlier launch has not left it";
}

// Those whose gates are open for good are counted as if they were begun.
void GraphReplays::LookAtWaiting() {
  const Nanoseconds now = Now();
  watch_.look_at = now + kLookInterval;
  uint64_t waiting = 0;
  for (Capture& capture : captures_) {
    for (Entry& entry : capture.entries) {
      GraphCall& call = *entry.captured.call;
      if (call.launches() == entry.taken || call.IsOpenForGood()) continue;
      ++waiting;
      // More than one launch may wait at a gate that opened for one when the calls under way ended.
      if (HasCrossed(entry) || watch_.has_failed) {
        call.End();
        continue;
      }
      if (entry.waits_until == 0) entry.waits_until = DeadlineAfter(entry.captured.timeout);
      if (now >= entry.waits_until) Fail(WhyItWaits(entry));
    }
  }
  if (waiting == 0) watch_.begun = watch_.seen.launches;
}

std::vector<GraphReplays::Captured> GraphReplays::TakeGone() {
  std::vector<Captured> gone;
  if (watch_.seen.ends == watch_.ends) return gone;
  size_t most = 0;
  for (const Capture& capture : captures_) most += capture.entries.size();
  gone.reserve(most);  // Before any is taken.
  bool are_all_over = true;
  for (Capture& capture : captures_) {
    for (auto entry = capture.entries.begin(); entry != capture.entries.end();) {
      const auto each = entry++;
      const GraphCall& call = *each->captured.call;
      if (!call.is_gone()) continue;
      const bool is_over = call.IsIdle() && (call.launches() == each->taken || call.IsOpenForGood());
      are_all_over &= is_over;
      if (!is_over) continue;
      gone.push_back(std::move(each->captured));
      Erase(&capture, each);
    }
  }
  EraseEmpty();
  if (are_all_over) watch_.ends = watch_.seen.ends;
  return gone;
}

}  // namespace annulus
