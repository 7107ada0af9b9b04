// Explain: what annulus-perf --explain prints: how each call that the options ask for would be done, and why.
//
// Threads: plain functions.
#pragma once

#include <annulus.h>

#include <iosfwd>

#include "base/status.h"
#include "bench/perf/perf_group.h"
#include "bench/perf/perf_options.h"

namespace annulus::perf {

// Explains the calls of the ranks of `group`; collective. Rank 0 writes, after some calls from which its links know how
// far the peers are.
Status ExplainGroup(const Options& options, Group& group, std::ostream& out);

// Explains the calls of options.ranks ranks, which need not exist, with the settings of the environment.
// Errors: kInvalidArgument  the settings are wrong, or such ranks could not be linked.
Status ExplainRanks(const Options& options, std::ostream& out);

}  // namespace annulus::perf
