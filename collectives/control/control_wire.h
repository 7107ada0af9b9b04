// MessageType: what kinds of messages a control connection carries, and what is before each of them.
//
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace annulus {

// What a control connection carries. A message is a length (u32: the bytes after it), its type (u8) and its body; the
// bodies are specified in docs/wire_protocol.md. Numbers are never reused.
enum class MessageType : uint8_t {
  kJoin = 1,     // rank -> rank 0: my blob, and what I believe of the job.
  kTable = 2,    // rank 0 -> rank: the job's id and everyone's blob.
  kRefused = 3,  // rank 0 -> rank: why there will be no communicator.
  kReport = 4,   // rank -> rank 0: a collective failed here.
  kQuery = 5,    // rank 0 -> rank: what are you doing?
  kAnswer = 6,   // rank -> rank 0: this.
  kVerdict = 7,  // rank 0 -> rank: the end. rank -> rank 0: I had to settle on this myself.
  kGoodbye = 8,  // Both ways: I leave; my connection closes next.
  kDoubt = 9,    // rank -> rank 0: I wait long; do we all agree?
};

constexpr size_t kMessageHeaderBytes = 5;

}  // namespace annulus
