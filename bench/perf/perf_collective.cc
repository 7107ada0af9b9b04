// The collectives by name and by size.
//
// Threads: see perf_collective.h.
#include "bench/perf/perf_collective.h"

#include <algorithm>

namespace annulus::perf {
namespace {

constexpr std::array kKindNames = {"allreduce", "reduce_scatter", "allgather", "broadcast", "reduce", "gather",
                                   "scatter",   "alltoall",       "sendrecv",  "pingpong",  "barrier"};
static_assert(kKindNames.size() == kAllKinds.size());
constexpr std::array kTypeNames = {"int32", "int64",  "float16", "bfloat16",    "float32",     "float64", "int8",
                                   "uint8", "uint32", "uint64",  "float8_e4m3", "float8_e5m2", "int16",   "uint16"};
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

bool HasRoot(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather || kind == Kind::kScatter;
}

bool IsSplit(Kind kind) {
  return kind == Kind::kReduceScatter || kind == Kind::kAllgather || kind == Kind::kGather || kind == Kind::kScatter ||
         kind == Kind::kAlltoall;
}

bool IsMessages(Kind kind) { return kind == Kind::kSendrecv || kind == Kind::kPingpong; }

bool HasInPlaceForm(Kind kind) { return kind != Kind::kAlltoall && !IsMessages(kind) && kind != Kind::kBarrier; }

int SenderTo(Kind kind, int rank, int nranks) {
  if (kind == Kind::kPingpong) return ReceiverOf(kind, rank, nranks);
  return (rank + nranks - 1) % nranks;
}

int ReceiverOf(Kind kind, int rank, int nranks) {
  if (kind != Kind::kPingpong) return (rank + 1) % nranks;
  const int partner = rank % 2 == 0 ? rank + 1 : rank - 1;
  return partner < nranks ? partner : rank;
}

bool HasInput(Kind kind, int root, int rank) {
  return rank == root || (kind != Kind::kBroadcast && kind != Kind::kScatter);
}

bool HasResult(Kind kind, int root, int rank) {
  return rank == root || (kind != Kind::kReduce && kind != Kind::kGather);
}

std::string CallName(const CallSpec& spec) { return std::string(KindName(spec.kind)) + (spec.has_counts ? "v" : ""); }

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
    case Kind::kPingpong:
      return 1;
    case Kind::kBarrier:
      break;
  }
  return 0;
}

double TimeFactor(Kind kind) { return kind == Kind::kPingpong ? 0.5 : 1; }

}  // namespace annulus::perf
