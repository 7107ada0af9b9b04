// VerbsReturns: what an end has to give back to its peer: taken messages and released slots. The receiver changes it,
// and the sender puts it into the next header. VerbsFault: something that the peer must not do, or that the device
// refuses.
//
// Threads: plain values.
#pragma once

#include <cstdint>

namespace annulus {

struct VerbsReturns {
  uint64_t released = 0;     // As in VerbsHeader.
  uint32_t taken = 0;        // As in VerbsHeader.
  uint32_t told_taken = 0;   // The value of `taken` that the peer knows.
  int untold_slots = 0;      // Slots that were released since the last header.
  bool untold_lent = false;  // A slice was taken whose sender waits to hear of it.

  void Told() {
    told_taken = taken;
    untold_slots = 0;
    untold_lent = false;
  }
};

struct VerbsFault {
  const char* what = nullptr;  // Null: no fault.
  uint64_t value = 0;
  int os_errno = 0;  // Not 0: the device refused the operation `what`.

  // The first fault counts.
  void Set(const char* new_what, uint64_t new_value, int new_errno = 0) {
    if (what == nullptr) *this = {new_what, new_value, new_errno};
  }
  bool any() const { return what != nullptr; }
};

}  // namespace annulus
