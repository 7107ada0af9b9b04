// Reads what ANNULUS_TRACE wrote, and checks that every event is one.
//
// Threads: plain functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace annulus {

using Json = nlohmann::json;

// The file, all of whose events have what the format asks for, and whose intervals nest. Failures are the test's.
Json ReadTrace(const std::string& path);

// The events with that name; with that "cat".
std::vector<Json> Named(const Json& trace, const std::string& name);
std::vector<Json> OfCategory(const Json& trace, const std::string& category);

// The sum of args.bytes over events of that name in collective `sequence`.
uint64_t BytesOf(const Json& trace, const std::string& name, uint64_t sequence);

}  // namespace annulus
