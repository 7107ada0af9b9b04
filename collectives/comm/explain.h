// Explain: describes how a call is done and why: the algorithm, its slices, the modelled time of each candidate, and
// the link costs behind them.
//
// Threads: plain functions. Call ExplainLinks only while nothing else uses the communicator.
#pragma once

#include <optional>
#include <string>

#include "collectives/annulus.h"
#include "collectives/choice/plan.h"
#include "collectives/core/options.h"

namespace annulus {

struct ExplainInput {
  PlanSettings settings;
  Topology topology;
  AlgorithmChoice choice;
  std::string source = "nominal costs";  // Source of the costs.
  std::string links;                     // What else there is to say of all links; "" when nothing.
};

// Returns the input for a communicator.
ExplainInput ExplainInputOf(const annulus_comm_t* comm);
// Returns the input for hypothetical ranks with these settings, spread evenly over `hosts`, with a core for each rank.
// They have no measured costs, whatever the settings say. `transports` are the transports they have; options.transport
// must allow one that links them all. Errors: kInvalidArgument where options.memory_bytes is too little for them.
Status HypotheticalInput(int nranks, int hosts, const Options& options, TransportList transports,
                         std::optional<ExplainInput>* input);

// Describes what holds for every call: settings, layout, link costs. Several lines.
std::string ExplainJob(const ExplainInput& input);

// Describes the transports to the peers of this rank, and how slots for them are currently written; "" without peers.
std::string ExplainLinks(const annulus_comm_t* comm);

// False when there is no collective of that name.
bool FindKind(const std::string& name, CollectiveKind* kind);

// Describes a call. `count` as in the C API; where parts may differ, it is that of each. Several lines.
std::string ExplainCall(const ExplainInput& input, CollectiveKind kind, size_t count, size_t element_bytes);

}  // namespace annulus
