// The collectives by name, by size and by call.
//
// Threads: see perf_collective.h.
#include "bench/perf/perf_collective.h"

#include <algorithm>
#include <cstring>

namespace annulus::perf {
namespace {

constexpr std::array kKindNames = {"allreduce", "reduce_scatter", "allgather", "broadcast", "reduce",
                                   "gather",    "scatter",        "alltoall",  "sendrecv",  "barrier"};
static_assert(kKindNames.size() == kAllKinds.size());
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

// One of the buffers holds a part for every rank.
bool IsSplit(Kind kind) {
  return kind == Kind::kReduceScatter || kind == Kind::kAllgather || kind == Kind::kGather || kind == Kind::kScatter ||
         kind == Kind::kAlltoall;
}

annulus_status_t StartMessages(annulus_comm_t* comm, const CallSpec& spec, const void* send, void* recv,
                               std::vector<annulus_request_t*>* requests) {
  int rank = 0, nranks = 1;
  annulus_status_t status = annulus_comm_rank(comm, &rank);
  if (status == ANNULUS_OK) status = annulus_comm_size(comm, &nranks);
  if (status != ANNULUS_OK) return status;
  if (nranks == 1) {
    std::memcpy(recv, send, spec.count * annulus_type_bytes(spec.type));
    return ANNULUS_OK;
  }
  // The receive first: a message that arrives then lands at once.
  annulus_request_t* request = nullptr;
  status = annulus_recv_async(comm, recv, spec.count, spec.type, (rank + nranks - 1) % nranks, &request);
  if (status != ANNULUS_OK) return status;
  requests->push_back(request);
  status = annulus_send_async(comm, send, spec.count, spec.type, (rank + 1) % nranks, &request);
  if (status == ANNULUS_OK) requests->push_back(request);
  return status;
}

annulus_status_t ExchangeMessages(annulus_comm_t* comm, const CallSpec& spec, const void* send, void* recv) {
  std::vector<annulus_request_t*> requests;
  requests.reserve(2);
  annulus_status_t status = StartMessages(comm, spec, send, recv, &requests);
  for (annulus_request_t* request : requests) {
    // The first failure counts; freeing waits for what has not finished.
    if (status == ANNULUS_OK) status = annulus_request_wait(request, -1);
    const annulus_status_t freed = annulus_request_free(request);
    if (status == ANNULUS_OK) status = freed;
  }
  return status;
}

annulus_status_t StartCollective(annulus_comm_t* comm, const CallSpec& spec, const void* send, void* recv,
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
    case Kind::kGather:
      return annulus_gather_async(comm, send, recv, spec.count, spec.type, spec.root, request);
    case Kind::kScatter:
      return annulus_scatter_async(comm, send, recv, spec.count, spec.type, spec.root, request);
    case Kind::kAlltoall:
      return annulus_alltoall_async(comm, send, recv, spec.count, spec.type, request);
    case Kind::kSendrecv:  // Not one request but two: StartMessages.
    case Kind::kBarrier:
      break;
  }
  return annulus_barrier_async(comm, request);
}

}  // namespace

const char* KindName(Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }
const char* TypeName(annulus_type_t type) { return kTypeNames[static_cast<size_t>(type)]; }
const char* OpName(annulus_op_t op) { return kOpNames[static_cast<size_t>(op)]; }
std::optional<Kind> ParseKind(std::string_view name) { return Find<Kind>(kKindNames, name); }
std::optional<annulus_type_t> ParseType(std::string_view name) { return Find<annulus_type_t>(kTypeNames, name); }
std::optional<annulus_op_t> ParseOp(std::string_view name) { return Find<annulus_op_t>(kOpNames, name); }

bool HasOp(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kReduceScatter || kind == Kind::kReduce; }

bool HasRoot(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather || kind == Kind::kScatter;
}

bool HasInPlaceForm(Kind kind) { return kind != Kind::kAlltoall && kind != Kind::kSendrecv && kind != Kind::kBarrier; }

bool HasInput(Kind kind, int root, int rank) {
  return rank == root || (kind != Kind::kBroadcast && kind != Kind::kScatter);
}

bool HasResult(Kind kind, int root, int rank) {
  return rank == root || (kind != Kind::kReduce && kind != Kind::kGather);
}

CallSpec SpecForBytes(Kind kind, annulus_type_t type, annulus_op_t op, int root, size_t bytes, int nranks) {
  CallSpec spec{kind, type, op, root, 0};
  if (kind == Kind::kBarrier) return spec;
  const size_t unit = annulus_type_bytes(type) * (IsSplit(kind) ? static_cast<size_t>(nranks) : 1);
  spec.count = bytes / unit + (bytes % unit != 0 ? 1 : 0);
  return spec;
}

size_t SendCount(const CallSpec& spec, int nranks) {
  const bool parts = IsSplit(spec.kind) && spec.kind != Kind::kAllgather && spec.kind != Kind::kGather;
  return parts ? spec.count * static_cast<size_t>(nranks) : spec.count;
}

size_t RecvCount(const CallSpec& spec, int nranks) {
  const bool parts = IsSplit(spec.kind) && spec.kind != Kind::kReduceScatter && spec.kind != Kind::kScatter;
  return parts ? spec.count * static_cast<size_t>(nranks) : spec.count;
}

size_t LargerBytes(const CallSpec& spec, int nranks) {
  return std::max(SendCount(spec, nranks), RecvCount(spec, nranks)) * annulus_type_bytes(spec.type);
}

size_t InPlaceSendOffset(const CallSpec& spec, int rank) {
  const bool part = spec.kind == Kind::kAllgather || spec.kind == Kind::kGather;
  return part ? spec.count * static_cast<size_t>(rank) : 0;
}

size_t InPlaceRecvOffset(const CallSpec& spec, int rank) {
  const bool part = spec.kind == Kind::kReduceScatter || spec.kind == Kind::kScatter;
  return part ? spec.count * static_cast<size_t>(rank) : 0;
}

double BusFactor(Kind kind, int nranks) {
  const double share = static_cast<double>(nranks - 1) / nranks;
  switch (kind) {
    case Kind::kAllreduce:
      return 2 * share;
    case Kind::kReduceScatter:
    case Kind::kAllgather:
    case Kind::kGather:
    case Kind::kScatter:
    case Kind::kAlltoall:
      return share;
    case Kind::kBroadcast:
    case Kind::kReduce:
    case Kind::kSendrecv:
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
    case Kind::kGather:
      return annulus_gather(comm, send, recv, spec.count, spec.type, spec.root);
    case Kind::kScatter:
      return annulus_scatter(comm, send, recv, spec.count, spec.type, spec.root);
    case Kind::kAlltoall:
      return annulus_alltoall(comm, send, recv, spec.count, spec.type);
    case Kind::kSendrecv:
      return ExchangeMessages(comm, spec, send, recv);
    case Kind::kBarrier:
      break;
  }
  return annulus_barrier(comm);
}

annulus_status_t Start(annulus_comm_t* comm, const CallSpec& spec, const void* send, void* recv,
                       std::vector<annulus_request_t*>* requests) {
  if (spec.kind == Kind::kSendrecv) return StartMessages(comm, spec, send, recv, requests);
  annulus_request_t* request = nullptr;
  const annulus_status_t status = StartCollective(comm, spec, send, recv, &request);
  if (status == ANNULUS_OK) requests->push_back(request);
  return status;
}

}  // namespace annulus::perf
