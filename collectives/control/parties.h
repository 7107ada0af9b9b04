// Parties: ranks that made the same call, when not all did; and which of them a mismatch blames.
//
// Threads: pure functions.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace annulus {

// Each in ascending order; the parties in the order of their lowest ranks.
using Parties = std::vector<std::vector<int>>;

// Groups `ranks`, which ascend. `same` is an equivalence.
Parties PartiesOf(const std::vector<int>& ranks, const std::function<bool(int left, int right)>& same);

struct Blame {
  std::vector<int> odd;   // The party to blame.
  std::vector<int> rest;  // The party that is right.
  std::string others;     // `rest` as a sentence names it: "the others" where these are all others of the job.
};

// The largest party is right; among equally large ones, the one whose highest rank is lowest. Of the others, the party
// with the highest rank is to blame. There are two parties at least.
Blame BlameOf(Parties parties, int nranks);

}  // namespace annulus
