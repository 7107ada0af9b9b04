#include "collectives/arguments.h"

#include <cstdint>
#include <limits>

namespace annulus {
namespace {

bool Reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kReduce;
}

bool Rooted(CollectiveKind kind) { return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce; }

// The buffers that one rank reads and writes, in bytes; 0 = not used on this rank.
struct Extent {
  size_t send = 0;
  size_t recv = 0;
  size_t in_place_send = 0;  // Where in-place operation has the send buffer within the receive buffer,
  size_t in_place_recv = 0;  // or the receive buffer within the send buffer.
};

Extent ExtentOf(const Arguments& a, size_t bytes, int rank, int nranks) {
  switch (a.kind) {
    case CollectiveKind::kReduceScatter:
      return {bytes * nranks, bytes, 0, bytes * rank};
    case CollectiveKind::kAllgather:
      return {bytes, bytes * nranks, bytes * rank, 0};
    case CollectiveKind::kBroadcast:
      return {rank == a.root ? bytes : 0, bytes, 0, 0};
    case CollectiveKind::kReduce:
      return {bytes, rank == a.root ? bytes : 0, 0, 0};
    case CollectiveKind::kBarrier:
      return {};
    default:
      return {bytes, bytes, 0, 0};
  }
}

Status CheckBuffer(const char* name, const void* buffer, size_t bytes, size_t alignment) {
  if (bytes == 0) return Status();
  if (buffer == nullptr) return Status::Invalid(std::string(name) + " is null");
  const uintptr_t address = reinterpret_cast<uintptr_t>(buffer);
  if (address % alignment != 0) {
    return Status::Invalid(std::string(name) + " is not aligned to its element's " + std::to_string(alignment) +
                           " bytes");
  }
  return Status();
}

Status CheckOverlap(const Arguments& a, const Extent& extent) {
  if (extent.send == 0 || extent.recv == 0) return Status();
  const uintptr_t send = reinterpret_cast<uintptr_t>(a.sendbuf);
  const uintptr_t recv = reinterpret_cast<uintptr_t>(a.recvbuf);
  const bool overlap = send < recv + extent.recv && recv < send + extent.send;
  const bool in_place = send + extent.in_place_recv == recv + extent.in_place_send;
  if (overlap && !in_place) {
    return Status::Invalid(std::string("sendbuf and recvbuf of ") + KindName(a.kind) +
                           " overlap, but not in the in-place form");
  }
  return Status();
}

}  // namespace

Status CheckArguments(const Arguments& a, int rank, int nranks) {
  if (a.kind == CollectiveKind::kBarrier) return Status();
  const int type = static_cast<int>(a.type);
  const int op = static_cast<int>(a.op);
  if (type >= kNumDataTypes) return Status::Invalid("type is " + std::to_string(type) + ", which is no annulus_type_t");
  if (Reduces(a.kind) && op >= kNumReduceOps) {
    return Status::Invalid("op is " + std::to_string(op) + ", which is no annulus_op_t");
  }
  if (Rooted(a.kind) && (a.root < 0 || a.root >= nranks)) {
    return Status::Invalid("root is " + std::to_string(a.root) + "; allowed: 0 to " + std::to_string(nranks - 1));
  }
  const size_t element = TypeBytes(a.type);
  if (a.count > std::numeric_limits<ptrdiff_t>::max() / element / nranks) {
    return Status::Invalid("count is " + std::to_string(a.count) + ", more than the address space holds for " +
                           std::to_string(nranks) + " ranks");
  }
  const Extent extent = ExtentOf(a, a.count * element, rank, nranks);
  ANNULUS_RETURN_IF_ERROR(CheckBuffer("sendbuf", a.sendbuf, extent.send, element));
  ANNULUS_RETURN_IF_ERROR(CheckBuffer("recvbuf", a.recvbuf, extent.recv, element));
  return CheckOverlap(a, extent);
}

Call CallOf(const Arguments& a, uint64_t sequence) {
  Call call;
  call.sequence = sequence;
  call.kind = a.kind;
  if (a.kind == CollectiveKind::kBarrier) return call;
  call.type = a.type;
  call.count = a.count;
  if (Reduces(a.kind)) call.op = a.op;
  if (Rooted(a.kind)) call.root = a.root;
  return call;
}

}  // namespace annulus
