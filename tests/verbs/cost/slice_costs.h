// Slices over a verbs link whose two ends are driven by this thread, on the device of straight_nic.h: what each of them
// costs. Nothing is copied or reduced here, so what the device does not take is the transport's.
//
// Threads: one, but for the set-up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/transport/contract/contract_link.h"
#include "tests/verbs/cost/straight_nic.h"

namespace annulus {

struct SlicePattern {
  const char* name = "";
  uint32_t bytes = 64;
  bool both_ways = false;
  bool registered = false;  // The data lies in registered memory, not in slots.
  bool reads = false;       // And the peer reads it from there into such memory.
  bool continues = false;   // The link may go on over TCP, so what was sent is kept.
  int window = 4;           // Sends and receives under way at each end.
  const char* ports = "";   // As ANNULUS_VERBS_DEVICE.
  int empty_rounds = 0;  // Rounds of each end before its next one in which nothing can move, as while the wire is slow.
};

inline constexpr const char* kTwoPorts = "straight0,straight1";

inline constexpr SlicePattern kSlicePatterns[] = {
    {.name = "one way, 64 bytes"},
    {.name = "one way, 4 KiB", .bytes = 4096},
    {.name = "both ways, 64 bytes", .both_ways = true},
    {.name = "both ways, 4 KiB", .bytes = 4096, .both_ways = true},
    {.name = "both ways, one at a time, 64 bytes", .both_ways = true, .window = 1},
    {.name = "both ways, 64 bytes, ten empty rounds", .both_ways = true, .empty_rounds = 10},
    {.name = "both ways, 4 KiB registered", .bytes = 4096, .both_ways = true, .registered = true},
    {.name = "both ways, 64 bytes, kept", .both_ways = true, .continues = true},
    {.name = "both ways, 4 KiB, kept", .bytes = 4096, .both_ways = true, .continues = true},
    {.name = "both ways, 4 KiB registered, kept",
     .bytes = 4096,
     .both_ways = true,
     .registered = true,
     .continues = true},
    {.name = "both ways, 4 KiB read", .bytes = 4096, .both_ways = true, .registered = true, .reads = true},
    {.name = "both ways, 4 KiB read, two rails",
     .bytes = 4096,
     .both_ways = true,
     .registered = true,
     .reads = true,
     .ports = kTwoPorts},
    {.name = "both ways, 64 bytes, two rails", .both_ways = true, .ports = kTwoPorts},
    {.name = "both ways, 4 KiB, two rails", .bytes = 4096, .both_ways = true, .ports = kTwoPorts},
};

class SliceLink {
 public:
  static constexpr int kSlots = 8;
  static constexpr size_t kSlotBytes = 64 * 1024;

  // Null, with a test failure or a line on standard error, when the ends could not be connected.
  static std::unique_ptr<SliceLink> Open(const SlicePattern& pattern);
  ~SliceLink();
  SliceLink(const SliceLink&) = delete;
  SliceLink& operator=(const SliceLink&) = delete;

  // Moves so many slices in each direction of the pattern, until their sends have completed. Returns false when the
  // link fails.
  bool Run(uint64_t slices);

  // Slices that one Run moves in all.
  uint64_t SlicesOf(uint64_t slices) const { return pattern_.both_ways ? 2 * slices : slices; }

 private:
  struct End {
    std::vector<Send> sends;
    std::vector<Recv> recvs;
    std::byte* memory = nullptr;  // Memory for this end's data, where it is registered, and behind it for what is read.
    uint64_t posted = 0;
    uint64_t sent = 0;
    uint64_t expected = 0;  // Receives that were posted.
    uint64_t received = 0;
  };

  explicit SliceLink(const SlicePattern& pattern) : pattern_(pattern) {}
  bool Step(int side, uint64_t to_send, uint64_t to_receive);
  bool StepSends(Endpoint* endpoint, End* end, uint64_t to_send);
  bool StepReceives(Endpoint* endpoint, End* end, uint64_t to_receive);

  const SlicePattern pattern_;
  std::unique_ptr<ContractLink> link_;
  std::array<End, 2> ends_;
};

// Ticks of each call of the device that count as neither the device's nor its caller's: those of the clock.
double TicksOfTheClock();

}  // namespace annulus
