// Crowd: who has to go when too many connections without proof wait at one door.
//
// Threads: plain functions.
#pragma once

#include <cstddef>
#include <span>

namespace annulus {

struct CrowdMember {
  bool spoke = false;     // Has sent anything.
  int from_its_host = 1;  // Number of members with the same address, this one included.
};

// Index of the member to drop; there is at least one, and the oldest is first. Those who sent nothing go first, since a
// rank speaks as soon as it is connected. Among equals, those of the host with the most members go first, so that a
// crowd from one host keeps nobody else out; then the oldest.
inline size_t ChooseToDrop(std::span<const CrowdMember> members) {
  size_t chosen = 0;
  for (size_t i = 1; i < members.size(); ++i) {
    const CrowdMember& best = members[chosen];
    const bool quieter = best.spoke && !members[i].spoke;
    const bool alike = best.spoke == members[i].spoke;
    if (quieter || (alike && members[i].from_its_host > best.from_its_host)) chosen = i;
  }
  return chosen;
}

}  // namespace annulus
