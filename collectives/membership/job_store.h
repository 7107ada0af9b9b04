// JobStore: a store of the caller's that all ranks reach before they know each other. Rank 0 leaves its meeting point
// there, and the others look it up.
//
// Threads: the caller's functions are called by the thread that creates the communicator, one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/membership/meeting_point.h"

namespace annulus {

struct JobStore {
  // As the functions of annulus_store_t.
  std::function<int(const char* key, std::span<const std::byte> value)> set;
  std::function<int(const char* key, std::span<std::byte> value, size_t* bytes, int64_t timeout_ms)> get;
};

// Puts rank 0's meeting point under `key`. Errors: kSystem with the number that the store returned.
Status LeaveMeetingPoint(const JobStore& store, const std::string& key, const MeetingPoint& point);

// Waits up to `deadline` for the meeting point under `key`, as `rank`.
// Errors: kTimeout naming rank 0  it is not there. kSystem: the store failed before the deadline. kProtocol: something
// else is under that key.
Status FindMeetingPoint(const JobStore& store, const std::string& key, int rank, Deadline deadline,
                        MeetingPoint* point);

}  // namespace annulus
