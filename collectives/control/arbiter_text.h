// The texts of verdicts: lists of ranks, names of calls, how two calls differ, and the verdicts that need no judgement.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "collectives/control/verdict.h"

namespace annulus {

// "rank 3", "ranks 1, 2 and 5"; long lists are cut after a few: "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more".
std::string RankList(const std::vector<int>& ranks);

// "allreduce #7".
std::string CallName(const Call& call);

// "rank 2 called allreduce #7 with count 100, the others with count 200". Of several differing fields, the most telling
// is named. `odd` and `rest` name the ranks as a sentence does. The calls' sequences are equal, the calls are not.
std::string Difference(const std::string& odd, const Call& odd_call, const std::string& rest, const Call& rest_call);

// What a rank reports of itself and its peers, as all ranks may read it: by its number where it says "this rank".
std::string ForAll(std::string report, int reporter);

// One sentence on what to do about a failure of this code; "" when there is nothing to say.
const char* AdviceFor(Code code);

// Verdicts that a rank may also reach without the arbiter, so that the same event is always described in the same
// words.

// The control connection of `rank` ended, in an orderly way or by a reset.
Verdict DeathVerdict(int rank);
// Nothing passes between rank 0 and `ranks` any more. Both ends of a path say the same, and name the rank that is not
// 0.
Verdict LostPathVerdict(const std::vector<int>& ranks);
// `peer` noticed that `ranks` do not answer.
Verdict SilenceVerdict(const std::vector<int>& ranks, int peer);
// That of `rank`, whose report was not answered in time, by rank 0 or because the path to it is silent.
Verdict UnansweredVerdict(int rank, bool path_is_silent);
Verdict AbortVerdict(int rank, const std::string& reason = "");
Verdict BrokenMessageVerdict(int rank, const std::string& what);
// For a rank whose arbiter left before it could judge the failure that the rank saw in `call`.
Verdict ArbiterLeftVerdict(int rank, const Call& call);

}  // namespace annulus
