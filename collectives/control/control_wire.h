// MessageType: the kinds of messages on a control connection, and the size of their header.
//
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace annulus {

// Kinds of messages on a control connection. A message is a length (u32: the bytes after it), its type (u8) and its
// body; docs/wire_protocol.md specifies the bodies. Numbers are never reused.
enum class MessageType : uint8_t {
  kJoin = 1,     // rank -> rank 0: my blob, and what I know about the job.
  kTable = 2,    // rank 0 -> rank: the job's id and everyone's blob.
  kRefused = 3,  // rank 0 -> rank: why there will be no communicator.
  kReport = 4,   // rank -> rank 0: a collective failed here.
  kQuery = 5,    // rank 0 -> rank: what are you doing?
  kAnswer = 6,   // rank -> rank 0: what I am doing.
  kVerdict = 7,  // rank 0 -> rank: the end. rank -> rank 0: I had to settle on this myself.
  kGoodbye = 8,  // Both ways: I leave; my connection closes next.
  kDoubt = 9,    // rank -> rank 0: I have waited long; do we all agree?
  kTaken = 10,   // rank -> rank 0: I have the table.
  kBegin = 13,   // rank 0 -> rank: everyone has the table.
  // The next two are not counted among the messages of a session.
  kResume = 11,    // Both ways, first on each later connection: how many of your messages I have.
  kReceived = 12,  // Both ways: the same, now and then.
};

constexpr size_t kMessageHeaderBytes = 5;

}  // namespace annulus
