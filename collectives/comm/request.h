// Request: one queued collective, or a message, as its communicator keeps it.
//
// Threads: requests.h says who may touch what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "collectives/comm/call_arguments.h"
#include "collectives/core/segments.h"

namespace annulus {

// Names a request for as long as the user holds it, and nothing afterwards: no two requests of a process have the same.
using RequestHandle = uint64_t;

struct Request {
  RequestHandle handle = 0;
  size_t place = 0;  // Among its communicator's.
  CallArguments arguments;
  Call call;
  std::vector<size_t> numbers;  // Copies of what the arguments' layouts point to.
  // What it does in place of its arguments' buffers, when it stands for several allreduces of a group; their requests.
  Segments segments;
  std::vector<Request*> members;
  Request* group = nullptr;  // The group's own request, if it has one and this one belongs to it.
  size_t unfinished = 0;     // Of a group's own request: how many of its calls are.
  uint64_t number = 0;       // Of the collectives queued on this communicator, in the order of the calls.
  int priority = 0;
  int waiters = 0;         // Threads that wait for it and will look at it again.
  bool queued = true;      // Not before its group ends.
  bool discarded = false;  // The user does not hold it: given back once it is done and nobody waits.
  bool delivered = false;  // The user was told the outcome.
  bool done = false;
  Code code = Code::kInProgress;

  // As new, but for memory that the next one may use.
  void Clear() {
    std::vector<size_t> kept = std::move(numbers);
    *this = Request();
    kept.clear();
    numbers = std::move(kept);
  }
};

}  // namespace annulus
