// StartOrder: everything an agent needs to start the ranks of its host. It is sent to the agent's standard input, so
// that neither the job's key nor any other variable shows on a command line.
//
// Threads: a value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/job/variables.h"

namespace annulus {

struct StartOrder {
  int first_rank = 0;
  int nranks = 0;  // Number of ranks on this host.
  int size = 0;    // Number of ranks in the job.
  bool prefix = true;
  bool bind = true;    // Whether each rank is bound to a share of the host's cores.
  std::string folder;  // Working directory of the ranks.
  Variables variables;
  std::vector<std::string> command;
};

std::string Encode(const StartOrder& order);

// Returns false when `content` is not an order, or is an inconsistent one.
bool Decode(std::string_view content, StartOrder* order);

}  // namespace annulus
