// Select: the explicit list of backends, and which of them a pair of ranks uses.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "transport/select/transport_options.h"
#include "transport/transport.h"

namespace annulus {

struct Backend {
  const char* name;
  bool same_host_only;
  std::unique_ptr<Transport> (*create)(const TransportConfig& config);
};

// All backends, the preferred one first.
std::span<const Backend> Backends();

// The backend that the user wants; null for any.
const Backend* ChosenBackend(TransportChoice choice);

// One end of a pair: the host it is on and, by index in Backends(), where each backend listens ("" = not usable there).
struct SelectEnd {
  int rank = 0;
  std::string host_id;
  std::span<const std::string> addresses;
};

// Chooses a backend for the pair; both ends come to the same choice. Output: index in Backends().
// Errors: kUnsupported naming the ranks and why no backend fits.
Status SelectBackend(const SelectEnd& left, const SelectEnd& right, int* index);

}  // namespace annulus
