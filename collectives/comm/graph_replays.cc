#include "collectives/comm/graph_replays.h"

#include <algorithm>
#include <utility>

#include "base/thread.h"

namespace annulus {
namespace {

// Whether ranks could see the two in different orders, and must not.
bool KeepOrder(const CallArguments& a, const CallArguments& b) {
  if (!IsMessage(a.kind) || !IsMessage(b.kind)) return IsMessage(a.kind) == IsMessage(b.kind);
  return a.kind == b.kind && (a.root == b.root || a.root == ANNULUS_ANY_PEER || b.root == ANNULUS_ANY_PEER);
}

bool KeepOrder(const std::vector<Request*>& a, const std::vector<Request*>& b) {
  return std::ranges::any_of(a, [&b](const Request* left) {
    return std::ranges::any_of(b,
                               [left](const Request* right) { return KeepOrder(left->arguments, right->arguments); });
  });
}

}  // namespace

Status GraphReplays::Start() {
  const std::lock_guard<std::mutex> lock(start_mu_);
  if (thread_.joinable() || is_stopping_) return Status();
  return StartThread(
      "the thread for graphs", [this] { Thread(); }, &thread_);
}

void GraphReplays::Add(Captured captured) {
  const std::lock_guard<std::mutex> lock(mu_);
  captured_.push_back(std::move(captured));
  has_captured_.store(true, std::memory_order_relaxed);
}

bool GraphReplays::Remove(const GraphCall* call) {
  const std::lock_guard<std::mutex> lock(mu_);
  return std::erase_if(captured_, [call](const Captured& each) { return each.call == call; }) > 0;
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
  for (uint64_t seen = 0;;) {
    seen = bell_->Await(seen);
    std::vector<Captured> gone;
    {
      const std::lock_guard<std::mutex> lock(mu_);
      if (is_stopping_) return;
      while (Captured* const next = FindNext()) {
        ++next->taken;
        config_.replay(*next);
      }
      gone = TakeGone();
    }
    for (const Captured& each : gone) config_.forget(each);
  }
}

GraphReplays::Captured* GraphReplays::FindNext() {
  for (Captured& each : captured_) {
    // Once gates are open for good, launches come though the calls of earlier ones have not ended.
    if (each.call->launches() > each.taken && each.call->IsIdle() && IsNext(each)) return &each;
  }
  return nullptr;
}

bool GraphReplays::IsNext(const Captured& captured) const {
  bool is_before = true;
  for (const Captured& other : captured_) {
    if (&other == &captured) {
      is_before = false;
      continue;
    }
    const uint64_t least = captured.taken + (is_before ? 1 : 0);
    if (other.capture == captured.capture && other.taken < least && KeepOrder(other.models, captured.models))
      return false;
  }
  return true;
}

std::vector<GraphReplays::Captured> GraphReplays::TakeGone() {
  std::vector<Captured> gone;
  std::erase_if(captured_, [&gone](Captured& each) {
    const bool is_over = each.call->is_gone() && each.call->launches() == each.taken && each.call->IsIdle();
    if (is_over) gone.push_back(std::move(each));
    return is_over;
  });
  return gone;
}

}  // namespace annulus
