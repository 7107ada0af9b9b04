// Trace: the newest events of a communicator and their times, for the timeline that ANNULUS_TRACE asks for.
//
// Events go into a ring of fixed size, without locks or allocation. The ring may be read while it is written: its words
// are atomics, and events overwritten meanwhile are left out. trace_file.h writes it to a file.
// Users' labels of calls are kept beside the ring, under a lock; events have their numbers.
//
// Threads: Begin, End, Add, AddWait, AddSleep and LabelNext from the driving thread; AddLink, LabelOf, SetVerdict and
// Read from any.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/control/verdict.h"
#include "collectives/core/collective.h"

namespace annulus {

struct TraceEvent {
  enum class Kind : uint8_t { kCollective, kMessage, kWait, kSleep, kReceived, kReduced, kCopied, kSent };
  Kind kind = Kind::kWait;
  bool ok = true;   // kCollective.
  int channel = 0;  // Slices.
  int peer = -1;    // -1: none in particular. Reductions: sender of the slice.
  uint64_t bytes = 0;
  uint32_t chunk = 0;
  uint64_t slice = 0;
  uint16_t label = 0;  // kCollective, kMessage: what LabelOf returned.
  Call call;           // kCollective, kMessage: sequence, kind, type and count; the others: sequence.
  Nanoseconds begin = 0;
  Nanoseconds took = 0;
};

struct TraceLink {
  int peer = 0;
  int channel = 0;
  std::string transport;
  std::string description;
  Nanoseconds made = 0;
};

class Trace {
 public:
  // Capacity: 8 MiB of events. A slice of the ring makes three or four events.
  static constexpr size_t kEvents = 128 * 1024;

  explicit Trace(size_t events = kEvents);

  // Adds a link; called at set-up.
  void AddLink(TraceLink link);

  // The most labels that are kept, and the most bytes of each.
  static constexpr size_t kLabels = 4096;
  static constexpr size_t kLabelBytes = 100;
  // Number of the user's label; 0 for null, "", and further labels once kLabels are kept.
  uint16_t LabelOf(const char* label);
  // The label of the next collective that begins.
  void LabelNext(const char* label) { next_label_ = LabelOf(label); }

  // Begin and end of a collective. One that has not ended is shown as unfinished.
  void Begin(const Call& call, Nanoseconds now);
  void End(bool ok, Nanoseconds now);

  void Add(const TraceEvent& event);
  // Adds a wait. Its begin is an estimate and is never earlier than the end of the wait before it.
  void AddWait(int peer, Nanoseconds begin, Nanoseconds end);
  void AddSleep(Nanoseconds begin, Nanoseconds end);

  // Sets the verdict; only the first one counts.
  void SetVerdict(const Verdict& verdict, Nanoseconds now);

  struct Content {
    std::vector<TraceLink> links;
    std::vector<TraceEvent> events;   // Sorted by their end.
    std::vector<std::string> labels;  // By number.
    uint64_t dropped = 0;             // Number of older events that were overwritten.
    bool unfinished = false;          // The last event is a collective in progress, up to now.
    Verdict verdict;                  // Code::kOk: none.
    Nanoseconds verdict_at = 0;
  };
  // Reads the newest `most` events.
  Content Read(Nanoseconds now, size_t most = kEvents) const;

 private:
  static constexpr size_t kWords = 8;
  using Record = std::array<std::atomic<uint64_t>, kWords>;
  using Words = std::array<uint64_t, kWords>;

  static Words Pack(const TraceEvent& event);
  static TraceEvent Unpack(const Words& words);

  const size_t capacity_;
  const std::unique_ptr<Record[]> ring_;
  std::atomic<uint64_t> added_{0};
  Record open_{};  // Collective in progress, if its first word, the begin, is not 0.
  Call call_;      // The writer's copy.
  Nanoseconds call_begin_ = 0;
  uint16_t call_label_ = 0;
  uint16_t next_label_ = 0;
  Nanoseconds waited_until_ = 0;
  mutable std::mutex mutex_;  // Guards the members below, none of which is on the data path.
  std::vector<TraceLink> links_;
  std::map<std::string, uint16_t, std::less<>> labels_;
  Verdict verdict_;
  Nanoseconds verdict_at_ = 0;
};

}  // namespace annulus
