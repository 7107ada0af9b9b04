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

// Index of the member to drop; there is at least one. Those who sent nothing go first, then those who sent no hello,
// since a rank says its hello as soon as it is connected. Among equals, those of the host with the most members go
// first, so that a crowd from one host keeps nobody else out; then `draw`, a random number, decides. So whoever has to
// wait for its proof in a crowd that is renewed all the time has a chance, however far away it is; if the oldest went,
// it would have none.
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
