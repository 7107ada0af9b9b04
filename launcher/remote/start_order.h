// StartOrder: what an agent needs to know to start the ranks of its host. It travels through the agent's standard
// input, so that neither the job's key nor any other variable shows on a command line.
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
  int nranks = 0;  // On this host.
  int size = 0;    // Of the job.
  bool prefix = true;
  bool bind = true;    // To a share of the host's cores each.
  std::string folder;  // To work in.
  Variables variables;
  std::vector<std::string> command;
};

std::string Encode(const StartOrder& order);

// False when `content` is no order, or one that makes no sense.
bool Decode(std::string_view content, StartOrder* order);

}  // namespace annulus
