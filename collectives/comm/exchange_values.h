// ExchangeValues: a value of each rank for all of them.
//
// Threads: as for a call of the communicator.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "collectives/comm/communicator.h"

namespace annulus {

// Gives every rank the `own` values of all ranks, by rank; they are copied byte by byte. Collective. Errors: those of
// an allgather.
template <typename Value>
Status ExchangeValues(Communicator* parent, const Value& own, std::vector<Value>* all) {
  static_assert(sizeof(Value) % sizeof(int32_t) == 0);
  all->assign(parent->nranks(), Value());
  CallArguments arguments;
  arguments.kind = CollectiveKind::kAllgather;
  arguments.sendbuf = &own;
  arguments.recvbuf = all->data();
  arguments.count = sizeof(Value) / sizeof(int32_t);
  arguments.type = DataType::kInt32;
  return parent->RunInWords(arguments);
}

}  // namespace annulus
