// SimPool: the slots of one direction of a simulated endpoint: aligned buffers, and who has them.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "transport/sim/sim_clock.h"

namespace annulus {

class SimPool {
 public:
  struct Slot {
    size_t bytes = 0;   // How much the caller may write.
    bool lent = false;  // The caller has it: acquired and not posted yet, or completed and not released yet.
    int sender = -1;    // The peer's slot whose data this one has, where the slots are shared; -1: none.
  };

  SimPool(int slots, size_t slot_bytes);

  // Lends a random slot; null when there is none.
  std::byte* Lend(SimClock* clock);
  // Fills the slot with poison, to expose readers that should not read it.
  void Give(int index);
  // The slot's index; -1 when `data` is not in a slot.
  int IndexOf(const std::byte* data) const;
  Slot& at(int index) { return slots_[index]; }

 private:
  struct Delete {
    void operator()(std::byte* memory) const;
  };
  const size_t slot_bytes_;
  const size_t stride_;
  std::vector<Slot> slots_;
  std::unique_ptr<std::byte, Delete> memory_;
  std::vector<int> free_;
};

}  // namespace annulus
