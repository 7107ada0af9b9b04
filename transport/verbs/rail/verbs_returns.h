// VerbsReturns: what an end has to tell its peer of slices, whichever rail they took: released slots and taken slices.
// The receiver changes it, and the sender puts it into the next header. VerbsFault: something that the peer must not
// do, or that the device refuses.
//
// Threads: plain values.
#pragma once

#include <cstdint>

namespace annulus {

struct VerbsReturns {
  uint64_t released = 0;      // As in VerbsHeader.
  uint32_t releases = 0;      // As in VerbsHeader.
  uint32_t taken_slices = 0;  // As in VerbsHeader; the number of the slice that is taken next.
  int untold_slots = 0;       // Slots that were released since the last header.
  bool untold_lent = false;   // A slice was taken whose sender waits to hear of it.
  uint32_t last_rail = 0;     // The rail over which something came last: the one to tell over, of equal ones.

  void Release(uint32_t slot) {
    released ^= uint64_t{1} << slot;
    ++releases;
    ++untold_slots;
  }
  void Told() {
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
