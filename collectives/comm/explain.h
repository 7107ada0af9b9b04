// Explain: in words, how a call is done and why: the algorithm, its slices, what each candidate would take, and the
// costs of links by which that was found.
//
// Threads: plain functions. ExplainLinks while nothing else uses the communicator.
#pragma once

#include <string>

#include "collectives/annulus.h"
#include "collectives/choice/plan.h"
#include "collectives/core/options.h"

namespace annulus {

struct ExplainInput {
  int nranks = 1;
  PlanSettings settings;
  AlgorithmChoice choice;
  std::string source = "nominal costs";  // Where the costs come from.
};

// Of a communicator.
ExplainInput ExplainInputOf(const annulus_comm_t* comm);
// Of ranks that do not exist: spread evenly over `hosts`, with a core for each, with these settings. Nothing is
// measured of them, whatever the settings say. `transports`: those that they have, of which options.transport allows
// one that links them all.
ExplainInput HypotheticalInput(int nranks, int hosts, const Options& options, TransportList transports);

// What holds for every call: settings, layout, costs of links. Several lines.
std::string ExplainJob(const ExplainInput& input);

// The transports to the peers of this rank, and how slots for them are written at present; "" when there are none.
std::string ExplainLinks(const annulus_comm_t* comm);

// False when there is no collective of that name.
bool FindKind(const std::string& name, CollectiveKind* kind);

// A call. `count` as in the C API. Several lines.
std::string ExplainCall(const ExplainInput& input, CollectiveKind kind, size_t count, size_t element_bytes);

}  // namespace annulus
