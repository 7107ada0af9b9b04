#include "frameworks/torch/streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace annulus_torch {

c10::Stream Streams::Of(c10::Device device, const annulus_call_t& call) {
  const bool is_message = call.kind == ANNULUS_CALL_SEND || call.kind == ANNULUS_CALL_RECV;
  const Key key(device.index(), is_message ? call.kind : -1, is_message ? call.root : -1);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(key);
  if (found != streams_.end()) return found->second;
  // From the pool for urgent work: there the program's own streams, which a call may hold up for long, are rare.
  const c10::impl::VirtualGuardImpl guard(device.type());
  return streams_.emplace(key, guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true)).first->second;
}

}  // namespace annulus_torch
