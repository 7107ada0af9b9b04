#include "collectives/control/parties.h"

#include <algorithm>

#include "collectives/control/arbiter_text.h"

namespace annulus {

Parties PartiesOf(const std::vector<int>& ranks, const std::function<bool(int left, int right)>& same) {
  Parties parties;
  for (const int rank : ranks) {
    const auto its = [&](const std::vector<int>& party) { return same(party[0], rank); };
    auto party = std::find_if(parties.begin(), parties.end(), its);
    if (party == parties.end()) party = parties.insert(parties.end(), std::vector<int>{});
    party->push_back(rank);
  }
  return parties;
}

Blame BlameOf(Parties parties, int nranks) {
  const auto right = std::min_element(parties.begin(), parties.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.back() < b.back();
  });
  Blame blame;
  blame.rest = *right;
  parties.erase(right);
  const auto by_highest = [](const auto& a, const auto& b) { return a.back() < b.back(); };
  blame.odd = *std::max_element(parties.begin(), parties.end(), by_highest);
  const bool everyone_else = static_cast<int>(blame.odd.size() + blame.rest.size()) == nranks && blame.rest.size() > 1;
  blame.others = everyone_else ? "the others" : RankList(blame.rest);
  return blame;
}

}  // namespace annulus
