// The collectives by name, by size and by call.
//
// Threads: see perf_collective.h.
#include "bench/perf_collective.h"

#include <algorithm>

namespace annulus::perf {
namespace {

constexpr std::array kKindNames = {"allreduce", "reduce_scatter", "allgather", "broadcast", "reduce", "barrier"};
constexpr std::array kTypeNames = {"int32", "int64", "float16", "bfloat16", "float32",     "float64",
                                   "int8",  "uint8", "uint32",  "uint64",   "float8_e4m3", "float8_e5m2"};
static_assert(kTypeNames.size() == kAllTypes.size());
constexpr std::array kOpNames = {"sum", "prod", "min", "max", "avg"};

template <typename Enum, size_t kNames>
std::optional<Enum> Find(const std::array<const char*, kNames>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

}  // namespace

const char* KindName(Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }
const char* TypeName(annulus_type_t type) { return kTypeNames[static_cast<size_t>(type)]; }
const char* OpName(annulus_op_t op) { return kOpNames[static_cast<size_t>(op)]; }
std::optional<Kind> ParseKind(std::string_view name) { return Find<Kind>(kKindNames, name); }
std::optional<annulus_type_t> ParseType(std::string_view name) { return Find<annulus_type_t>(kTypeNames, name); }
std::optional<annulus_op_t> ParseOp(std::string_view name) { return Find<annulus_op_t>(kOpNames, name); }

bool HasOp(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kReduceScatter || kind == Kind::kReduce; }

bool HasRoot(Kind kind) { return kind == Kind::kBroadcast || kind == Kind::kReduce; }

CallSpec SpecForBytes(Kind kind, annulus_type_t type, annulus_op_t op, int root, size_t bytes, int nranks) {
  CallSpec spec{kind, type, op, root, 0};
  if (kind == Kind::kBarrier) return spec;
  const bool split = kind == Kind::kReduceScatter || kind == Kind::kAllgather;
  const size_t unit = annulus_type_bytes(type) * (split ? static_cast<size_t>(nranks) : 1);
  spec.count = bytes / unit + (bytes % unit != 0 ? 1 : 0);
  return spec;
}

size_t SendCount(const CallSpec& spec, int nranks) {
  return spec.kind == Kind::kReduceScatter ? spec.count * static_cast<size_t>(nranks) : spec.count;
}

size_t RecvCount(const CallSpec& spec, int nranks) {
  return spec.kind == Kind::kAllgather ? spec.count * static_cast<size_t>(nranks) : spec.count;
}

size_t LargerBytes(const CallSpec& spec, int nranks) {
  return std::max(SendCount(spec, nranks), RecvCount(spec, nranks)) * annulus_type_bytes(spec.type);
}

size_t InPlaceSendOffset(const CallSpec& spec, int rank) {
  return spec.kind == Kind::kAllgather ? spec.count * static_cast<size_t>(rank) : 0;
}

size_t InPlaceRecvOffset(const CallSpec& spec, int rank) {
  return spec.kind == Kind::kReduceScatter ? spec.count * static_cast<size_t>(rank) : 0;
}

double BusFactor(Kind kind, int nranks) {
  const double share = static_cast<double>(nranks - 1) / nranks;
  switch (kind) {
    case Kind::kAllreduce:
      return 2 * share;
    case Kind::kReduceScatter:
    case Kind::kAllgather:
      return share;
    case Kind::kBroadcast:
    case Kind::kReduce:
      return 1;
    case Kind::kBarrier:
      break;
  }
  return 0;
}

annulus_status_t Call(annulus_comm_t* comm, const CallSpec& spec, const void* send, void* recv) {
  switch (spec.kind) {
    case Kind::kAllreduce:
      return annulus_allreduce(comm, send, recv, spec.count, spec.type, spec.op);
    case Kind::kReduceScatter:
      return annulus_reduce_scatter(comm, send, recv, spec.count, spec.type, spec.op);
    case Kind::kAllgather:
      return annulus_allgather(comm, send, recv, spec.count, spec.type);
    case Kind::kBroadcast:
      return annulus_broadcast(comm, send, recv, spec.count, spec.type, spec.root);
    case Kind::kReduce:
      return annulus_reduce(comm, send, recv, spec.count, spec.type, spec.op, spec.root);
    case Kind::kBarrier:
      break;
  }
  return annulus_barrier(comm);
}

annulus_status_t Start(annulus_comm_t* comm, const CallSpec& spec, const void* send, void* recv,
                       annulus_request_t** request) {
  switch (spec.kind) {
    case Kind::kAllreduce:
      return annulus_allreduce_async(comm, send, recv, spec.count, spec.type, spec.op, request);
    case Kind::kReduceScatter:
      return annulus_reduce_scatter_async(comm, send, recv, spec.count, spec.type, spec.op, request);
    case Kind::kAllgather:
      return annulus_allgather_async(comm, send, recv, spec.count, spec.type, request);
    case Kind::kBroadcast:
      return annulus_broadcast_async(comm, send, recv, spec.count, spec.type, spec.root, request);
    case Kind::kReduce:
      return annulus_reduce_async(comm, send, recv, spec.count, spec.type, spec.op, spec.root, request);
    case Kind::kBarrier:
      break;
  }
  return annulus_barrier_async(comm, request);
}

}  // namespace annulus::perf
