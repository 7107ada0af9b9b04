// Variables: environments of ranks.
//
// Threads: plain functions.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace annulus {

using Variables = std::map<std::string, std::string>;

struct RankPlace {
  int rank;
  int size;
  int local_rank;
  int local_size;
};

// The variables of an environment in execve's form.
Variables ReadVariables(const char* const* environment);

// The environment of a rank, as "NAME=value" for execve: `variables` and the rank's own.
std::vector<std::string> RankEnvironment(Variables variables, const RankPlace& place);

}  // namespace annulus
