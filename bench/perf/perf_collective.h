// CallSpec: one collective call as annulus-perf measures it, and its buffers' sizes.
//
// Messages stand among the collectives. sendrecv: every rank sends to the next one and receives from the previous one.
// pingpong: ranks 0 and 1, 2 and 3 and so on exchange a message and its answer. A rank that has nobody to send to
// copies.
//
// Threads: plain functions and values.
#pragma once

#include <annulus.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace annulus::perf {

enum class Kind {
  kAllreduce,
  kReduceScatter,
  kAllgather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAlltoall,
  kSendrecv,
  kPingpong,
  kBarrier
};

inline constexpr std::array kAllKinds = {Kind::kAllreduce, Kind::kReduceScatter, Kind::kAllgather, Kind::kBroadcast,
                                         Kind::kReduce,    Kind::kGather,        Kind::kScatter,   Kind::kAlltoall,
                                         Kind::kSendrecv,  Kind::kPingpong,      Kind::kBarrier};
// In the order of their numbers. Bools are combined as bytes are, and complex numbers as their floats.
inline constexpr std::array kAllTypes = {ANNULUS_INT32,   ANNULUS_INT64,   ANNULUS_FLOAT16,     ANNULUS_BFLOAT16,
                                         ANNULUS_FLOAT32, ANNULUS_FLOAT64, ANNULUS_INT8,        ANNULUS_UINT8,
                                         ANNULUS_UINT32,  ANNULUS_UINT64,  ANNULUS_FLOAT8_E4M3, ANNULUS_FLOAT8_E5M2,
                                         ANNULUS_INT16,   ANNULUS_UINT16};
inline constexpr std::array kAllOps = {ANNULUS_SUM, ANNULUS_PROD, ANNULUS_MIN, ANNULUS_MAX, ANNULUS_AVG};

const char* KindName(Kind kind);
const char* TypeName(annulus_type_t type);
const char* OpName(annulus_op_t op);
std::optional<Kind> ParseKind(std::string_view name);
std::optional<annulus_type_t> ParseType(std::string_view name);
std::optional<annulus_op_t> ParseOp(std::string_view name);

bool HasOp(Kind kind);
bool HasRoot(Kind kind);
bool HasInPlaceForm(Kind kind);
// Whether one of the buffers holds a part for every rank, so that there is a form with counts.
bool IsSplit(Kind kind);
bool IsMessages(Kind kind);
// Whether `rank` gives something, and whether it gets something.
bool HasInput(Kind kind, int root, int rank);
bool HasResult(Kind kind, int root, int rank);

// The rank from which `rank` gets its message: `rank` itself when it has nobody to exchange messages with.
int SenderTo(Kind kind, int rank, int nranks);
// The rank to which it sends; likewise.
int ReceiverOf(Kind kind, int rank, int nranks);

struct CallSpec {
  Kind kind = Kind::kAllreduce;
  annulus_type_t type = ANNULUS_FLOAT32;
  annulus_op_t op = ANNULUS_SUM;
  int root = 0;
  size_t count = 0;         // As the collective takes it: per rank where a buffer holds a part for every rank.
  bool has_counts = false;  // The form with an array of counts: allgatherv in place of allgather.
};

// The name of its function, without prefix.
std::string CallName(const CallSpec& spec);

// The spec whose larger buffer has `bytes`, rounded up to whole elements for every rank. Barrier: count 0.
CallSpec SpecForBytes(Kind kind, annulus_type_t type, annulus_op_t op, int root, size_t bytes, int nranks);

// Elements of the two buffers; the larger one is the "size" of the table.
size_t SendCount(const CallSpec& spec, int nranks);
size_t RecvCount(const CallSpec& spec, int nranks);
size_t LargerBytes(const CallSpec& spec, int nranks);

// Where this rank's part starts, in elements, when both buffers are one (the in-place forms of annulus.h).
size_t InPlaceSendOffset(const CallSpec& spec, int rank);
size_t InPlaceRecvOffset(const CallSpec& spec, int rank);

// Bytes over the busiest link in one direction, per byte of the table's size: what turns algbw into busbw, as in
// nccl-tests.
double BusFactor(Kind kind, int nranks);

// Time of the table per time of the call: of pingpong half is shown, the way of one message.
double TimeFactor(Kind kind);

}  // namespace annulus::perf
