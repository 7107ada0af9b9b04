// Crowd: who has to go when too many connections without proof wait at one door.
//
// Threads: plain functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace annulus {

struct CrowdMember {
  // How far it has come. Who was just accepted has not been listened to yet, and counts as the furthest.
  enum class Stage { kSilent, kSpoke, kGreeted };
  Stage stage = Stage::kSilent;
  int from_its_host = 1;  // Number of members with the same address, this one included.
};

// Index of the member to drop; there is at least one. Connections that sent nothing go first, then those without a
// hello, which a rank says as soon as it is connected. Among equals, one of the host with the most members goes, so
// that one host cannot keep the others out; `draw`, a random number, breaks ties. So a rank that is slow, or far away,
// always has a chance. If the oldest went, a crowd that renews itself would leave it none.
inline size_t ChooseToDrop(std::span<const CrowdMember> members, size_t draw) {
  const auto goes_before = [](const CrowdMember& a, const CrowdMember& b) {
    return a.stage != b.stage ? a.stage < b.stage : a.from_its_host > b.from_its_host;
  };
  const CrowdMember first = *std::min_element(members.begin(), members.end(), goes_before);
  const auto is_equal = [&](const CrowdMember& member) {
    return !goes_before(first, member) && !goes_before(member, first);
  };
  size_t skip = draw % static_cast<size_t>(std::count_if(members.begin(), members.end(), is_equal));
  size_t chosen = 0;
  while (!is_equal(members[chosen]) || skip-- > 0) ++chosen;
  return chosen;
}

}  // namespace annulus
