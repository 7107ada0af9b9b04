// The short cut of Dispatcher for groups of small allreduces.
#include <algorithm>

#include "collectives/calls/group.h"
#include "collectives/choice/plan.h"
#include "collectives/comm/dispatcher.h"

namespace annulus {
namespace {

// More than any tensor has that goes by a short cut.
constexpr size_t kMostElements = size_t{1} << 30;

// Most chunks of tensors that are put together within one lock: some 20 us.
constexpr size_t kMostChunks = 4096;

}  // namespace

bool Dispatcher::SubmitAsOne(std::span<const CallArguments> given, void* handle) {
  if (given.size() * static_cast<size_t>(nranks()) > kMostChunks || !is_plain() || IsInsideReduction()) return false;
  const CallArguments& first = given.front();
  if (!MaySubmitAgain(given) || !AreAlike(given) || !CheckArguments(first, rank(), nranks()).ok()) return false;
  const auto has_own_order = [&](const CallArguments& a) {
    return HasOwnOrderInGroups(engine_.choice(), a.op, a.count * TypeBytes(a.type));
  };
  const bool own_order = has_own_order(first);
  for (const CallArguments& each : given) {
    if (each.count > kMostElements || each.created_op != 0 || has_own_order(each) != own_order) return false;
    if (each.count > 0 && !HasGoodBuffers(each)) return false;
  }
  if (!AreIndependent(given)) return false;
  CallQueue::Turn turn(queue_, CallQueue::Turn::OnlyLock());
  if (turn.is_stopping() || failures_->ended()) return false;
  Request* const request = requests_->AddFused(given);
  request->discarded = handle == nullptr;
  if (handle != nullptr) GiveHandle(*request, handle);
  turn.Add(request);
  return true;
}

}  // namespace annulus
