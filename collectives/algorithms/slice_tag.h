// SliceTag: the collective's identity as the tag of each slice, and the error when two ranks disagree.
//
// Layout of the four 64-bit words (docs/wire_protocol.md):
//   0  sequence (40 bits) | kind (8) | type (8) | op (8)
//   1  count
//   2  root (32) | chunk (32)
//   3  slice (48) | channel (16)
#pragma once

#include "base/status.h"
#include "collectives/core/collective.h"

namespace annulus {

// In place of a slice's number: what ranks tell each other of a call that their devices have got as a program of their
// streams (shared_fold/fold_program.h).
inline constexpr uint64_t kProgramSlice = uint64_t{1} << 47;

struct SliceId {
  uint32_t chunk = 0;
  uint64_t slice = 0;
  uint32_t channel = 0;
};

// `call.count` is Step::count of the slice. Inline, so that words go from registers to where the tag is kept: reading
// them as wider ones right after they were written would wait for every store before it, 10 to 20 ns a small call.
inline Tag PackTag(const Call& call, const SliceId& id) {
  Tag tag;
  tag.words[0] = (call.sequence << 24) | uint64_t{static_cast<uint8_t>(call.kind)} << 16 |
                 uint64_t{static_cast<uint8_t>(call.type)} << 8 | uint64_t{static_cast<uint8_t>(call.op)};
  tag.words[1] = call.count;
  tag.words[2] = uint64_t{static_cast<uint32_t>(call.root)} << 32 | id.chunk;
  tag.words[3] = id.slice << 16 | (id.channel & 0xffff);
  return tag;
}

// Returns the call that a tag names. `sequence` is cut to 40 bits, and with variable parts `count` is that of one part.
Call CallOf(const Tag& tag);

// Returns the same tag for a slice of another chunk.
inline Tag WithChunk(Tag tag, uint32_t chunk) {
  tag.words[2] = (tag.words[2] & ~uint64_t{0xffffffff}) | chunk;
  return tag;
}

// Returns the same tag for a slice whose step has another count.
inline Tag WithCount(Tag tag, uint64_t count) {
  tag.words[1] = count;
  return tag;
}

inline bool IsOfProgram(const Tag& tag) { return tag.words[3] >> 16 == kProgramSlice; }

inline uint32_t ChunkOf(const Tag& tag) { return static_cast<uint32_t>(tag.words[2]); }

// Compares word by word. When the tag has just been assembled, comparing wider words would wait for every store before
// it: 35 ns behind a slice of 1 KiB.
inline bool SameTag(const Tag& left, const Tag& right) {
  uint64_t difference = 0;
  for (size_t i = 0; i < left.words.size(); ++i) difference |= left.words[i] ^ right.words[i];
  return difference == 0;
}

// Description that a slice carries of itself.
struct SliceHead {
  Tag tag;
  size_t bytes = 0;
};

// Error that explains why the slice that arrived is not the expected one.
Status ExplainSlice(const SliceHead& expected, const SliceHead& arrived, int peer);

// Compares the slice that arrived from `peer` with the expected one. Errors: kMismatch when the calls differ, naming
// the first field that differs, with its value here and at `peer`; kProtocol when only the slices or their sizes
// differ.
inline Status CheckSlice(const SliceHead& expected, const SliceHead& arrived, int peer) {
  if (SameTag(arrived.tag, expected.tag) && arrived.bytes == expected.bytes) return Status();
  return ExplainSlice(expected, arrived, peer);
}

}  // namespace annulus
