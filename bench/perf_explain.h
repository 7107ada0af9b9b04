// Explain: what annulus-perf --explain prints: how each call that the options ask for would be done, and why.
//
// Threads: a plain function.
#pragma once

#include <annulus.h>

#include <iosfwd>

#include "bench/perf_options.h"

namespace annulus::perf {

// Of `comm`, or of options.ranks that need not exist where these are set; then `comm` may be null.
void Explain(const Options& options, const annulus_comm_t* comm, std::ostream& out);

}  // namespace annulus::perf
