#include "launcher/job/variables.h"

#include <string_view>

namespace annulus {

Variables ReadVariables(const char* const* environment) {
  Variables variables;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const size_t equals = entry.find('=');
    if (equals != std::string_view::npos) variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return variables;
}

std::vector<std::string> RankEnvironment(Variables variables, const RankPlace& place) {
  variables["ANNULUS_RANK"] = std::to_string(place.rank);
  variables["ANNULUS_SIZE"] = std::to_string(place.size);
  variables["ANNULUS_LOCAL_RANK"] = std::to_string(place.local_rank);
  variables["ANNULUS_LOCAL_SIZE"] = std::to_string(place.local_size);
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

}  // namespace annulus
