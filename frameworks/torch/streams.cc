#include "frameworks/torch/streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <set>
#include <utility>

namespace annulus_torch {
namespace {

constexpr int kPoolStreams = 32;  // As many has PyTorch's pool; it gives them in turn.

using Place = std::pair<c10::DeviceIndex, c10::StreamId>;

// Those that the groups of the process use, as often as they do. Never destroyed: groups may outlast main.
std::mutex g_mutex;
std::multiset<Place>& InUse() {
  static auto* const in_use = new std::multiset<Place>;
  return *in_use;
}

Place PlaceOf(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

// One that no other lane of the process is, while there are such.
c10::Stream Draw(c10::Device device) {
  // From the pool for urgent work: there the program's own streams, which a call may hold up for long, are rare.
  const c10::impl::VirtualGuardImpl guard(device.type());
  const std::lock_guard<std::mutex> lock(g_mutex);
  c10::Stream drawn = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  for (int turn = 1; turn < kPoolStreams && InUse().contains(PlaceOf(drawn)); ++turn) {
    drawn = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }
  if (InUse().contains(PlaceOf(drawn))) {
    TORCH_WARN_ONCE("Annulus: the process groups of this process use all ", kPoolStreams, " urgent streams of ", device,
                    ", so some calls wait for others that they have nothing to do with; a send and a receive that wait "
                    "for each other on two ranks end with the timeout");
  }
  InUse().insert(PlaceOf(drawn));
  return drawn;
}

}  // namespace

Streams::~Streams() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  for (const auto& [key, stream] : streams_) InUse().erase(InUse().find(PlaceOf(stream)));
}

c10::Stream Streams::Of(c10::Device device, const annulus_call_t& call) {
  const bool is_message = call.kind == ANNULUS_CALL_SEND || call.kind == ANNULUS_CALL_RECV;
  const Key key(device.index(), is_message ? call.kind : -1, is_message ? call.root : -1);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(key);
  if (found != streams_.end()) return found->second;
  return streams_.emplace(key, Draw(device)).first->second;
}

}  // namespace annulus_torch
