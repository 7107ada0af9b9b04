// Streaming stores, compiled once per instruction set.
#include "collectives/reduce/reducer_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reduce/reducer_stream.cc"
#include <hwy/foreach_target.h>
// After foreach_target: these are compiled anew for each target.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "collectives/reduce/reducer_stream.h"

HWY_BEFORE_NAMESPACE();
namespace annulus {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Whole lines only: a partly streamed line is written to memory in pieces.
constexpr size_t kLineBytes = 64;

HWY_ATTR void Stream(std::byte* to, const std::byte* from, size_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  const size_t misaligned = reinterpret_cast<uintptr_t>(to) % kLineBytes;
  const size_t head = misaligned == 0 ? 0 : std::min(bytes, kLineBytes - misaligned);
  std::memcpy(to, from, head);
  size_t at = head;
  if (lanes <= kLineBytes) {
    auto* const lines = reinterpret_cast<uint8_t*>(to);
    const auto* const source = reinterpret_cast<const uint8_t*>(from);
    for (; at + kLineBytes <= bytes; at += kLineBytes) {
      for (size_t part = 0; part < kLineBytes; part += lanes) {
        hn::Stream(hn::LoadU(d, source + at + part), d, lines + at + part);
      }
    }
  }
  std::memcpy(to + at, from + at, bytes - at);
}

}  // namespace HWY_NAMESPACE
}  // namespace annulus
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace annulus {

namespace {
HWY_EXPORT(Stream);
}  // namespace

void StreamBytes(std::byte* to, const std::byte* from, size_t bytes) { HWY_DYNAMIC_DISPATCH(Stream)(to, from, bytes); }

void FenceStreams() { hwy::FlushStream(); }

}  // namespace annulus
#endif  // HWY_ONCE
