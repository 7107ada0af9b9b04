// MeetingPoint: what rank 0 puts into a store of the caller's so that the other ranks find it (docs/wire_protocol.md,
// "Meeting through a store").
//
// Threads: values and plain functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/identity.h"
#include "base/status.h"

namespace annulus {

// Numbers are part of the format.
enum class KeySource : uint8_t {
  kNone = 0,   // The job has no key.
  kDrawn = 1,  // Rank 0 drew it, and it is in the meeting point.
  kGiven = 2,  // Every rank was given it.
};

struct MeetingPoint {
  MeetingPoint() = default;
  MeetingPoint(const MeetingPoint&) = default;
  MeetingPoint& operator=(const MeetingPoint&) = default;
  // Overwrites the key, which must not stay in freed memory.
  ~MeetingPoint();

  bool operator==(const MeetingPoint&) const = default;

  std::string address;  // "host:port" at which rank 0 listens.
  KeySource key_source = KeySource::kNone;
  std::string key;  // Empty unless it was drawn.
};

// The name under which a store has the meeting point of a run.
std::string MeetingPointKey(const JobRun& run);

// An encoded MeetingPoint; overwritten at the end, as it may hold a key.
class MeetingPointBytes {
 public:
  static constexpr size_t kMost = 512;

  MeetingPointBytes() = default;
  explicit MeetingPointBytes(const MeetingPoint& point);
  MeetingPointBytes(const MeetingPointBytes&) = delete;
  MeetingPointBytes& operator=(const MeetingPointBytes&) = delete;
  ~MeetingPointBytes();

  std::span<std::byte, kMost> room() { return room_; }
  std::span<const std::byte> used() const { return std::span(room_).first(bytes_); }
  // Errors: kInvalidArgument  that many do not fit.
  Status set_used(size_t bytes);

 private:
  std::array<std::byte, kMost> room_{};
  size_t bytes_ = 0;
};

// Errors: kProtocol  the bytes are no MeetingPoint.
Status Decode(std::span<const std::byte> bytes, MeetingPoint* point);

// 256 random bits in hexadecimal. Errors: kSystem.
Status DrawKey(std::string* key);

}  // namespace annulus
