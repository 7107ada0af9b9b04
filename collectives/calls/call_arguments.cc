#include "collectives/calls/call_arguments.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace annulus {
namespace {

// Whether an integer type with this many bits can hold the factor.
bool Holds(double factor, bool is_signed, int bits) {
  const double limit = std::ldexp(1.0, is_signed ? bits - 1 : bits);
  return factor == std::trunc(factor) && factor < limit && factor >= (is_signed ? -limit : 0);
}

Status CheckFactor(const CallArguments& a) {
  const int bits = static_cast<int>(TypeBytes(a.type)) * 8;
  const TypeClass type_class = ClassOf(a.type);
  const bool is_real = type_class == TypeClass::kFloat || type_class == TypeClass::kComplex;
  const bool holds = is_real || Holds(a.custom.factor, type_class == TypeClass::kSigned, bits);
  if (holds) return Status();
  return Status::Invalid("op " + std::to_string(a.created_op) + " has the factor " + std::to_string(a.custom.factor) +
                         ", which is no " + TypeName(a.type));
}

Status CheckOp(const CallArguments& a) {
  if (!IsOp(a.op)) {
    return Status::Invalid("op is " + std::to_string(static_cast<int>(a.op)) + ", which is no annulus_op_t");
  }
  if (!CanReduce(a.type, a.op)) return Status::Invalid(std::string(TypeName(a.type)) + " has no " + OpName(a.op));
  return a.custom.scales ? CheckFactor(a) : Status();
}

// The buffers that one rank reads and writes, in bytes; 0 = not used on this rank.
struct Extent {
  size_t send = 0;
  size_t recv = 0;
  size_t in_place_send = 0;  // In place: offset of the send buffer in the receive buffer.
  size_t in_place_recv = 0;  // In place: offset of the receive buffer in the send buffer.
  bool allows_in_place = true;
};

// A buffer with a part for every rank.
struct Parts {
  size_t bytes = 0;  // Size up to the end of the last part.
  size_t own_begin = 0;
};

Parts PartsOf(const Layout& layout, size_t count, size_t element, int rank, int nranks) {
  if (layout.counts == nullptr) return {count * element * nranks, count * element * rank};
  Parts parts;
  size_t next = 0;
  for (int r = 0; r < nranks; ++r) {
    const size_t begin = layout.offsets != nullptr ? layout.offsets[r] : next;
    if (r == rank) parts.own_begin = begin * element;
    next = begin + layout.counts[r];
    if (layout.counts[r] > 0) parts.bytes = std::max(parts.bytes, next * element);
  }
  return parts;
}

Extent ExtentOf(const CallArguments& a, size_t element, int rank, int nranks) {
  const size_t own = a.count * element;
  const Holding send = SendHolds(a.kind, rank == a.root);
  const Holding recv = RecvHolds(a.kind, rank == a.root);
  Extent extent{send == Holding::kOwn ? own : 0, recv == Holding::kOwn ? own : 0};
  extent.allows_in_place = send != Holding::kParts || recv != Holding::kParts;
  if (send == Holding::kParts) {
    const Parts parts = PartsOf(a.send_layout, a.count, element, rank, nranks);
    extent.send = parts.bytes;
    if (extent.allows_in_place) extent.in_place_recv = parts.own_begin;
  }
  if (recv == Holding::kParts) {
    const Parts parts = PartsOf(a.recv_layout, a.count, element, rank, nranks);
    extent.recv = parts.bytes;
    if (extent.allows_in_place) extent.in_place_send = parts.own_begin;
  }
  return extent;
}

bool IsGoodBuffer(const void* buffer, size_t bytes, size_t alignment) {
  return bytes == 0 || (buffer != nullptr && reinterpret_cast<uintptr_t>(buffer) % alignment == 0);
}

Status CheckBuffer(const char* name, const void* buffer, size_t bytes, size_t alignment) {
  if (IsGoodBuffer(buffer, bytes, alignment)) return Status();
  if (buffer == nullptr) return Status::Invalid(std::string(name) + " is null");
  return Status::Invalid(std::string(name) + " is not aligned to " + std::to_string(alignment) + " bytes");
}

// Whether the buffers overlap in another way than in place.
bool Overlap(const CallArguments& a, const Extent& extent) {
  if (extent.send == 0 || extent.recv == 0) return false;
  const uintptr_t send = reinterpret_cast<uintptr_t>(a.sendbuf);
  const uintptr_t recv = reinterpret_cast<uintptr_t>(a.recvbuf);
  const bool overlap = send < recv + extent.recv && recv < send + extent.send;
  const bool in_place = send + extent.in_place_recv == recv + extent.in_place_send;
  return overlap && !(in_place && extent.allows_in_place);
}

Status CheckOverlap(const CallArguments& a, const Extent& extent) {
  if (!Overlap(a, extent)) return Status();
  return Status::Invalid(std::string("sendbuf and recvbuf of ") + KindName(a.kind) + " overlap" +
                         (extent.allows_in_place ? ", but not in the in-place form" : "; it has no in-place form"));
}

// Parts at offsets that do not grow.
Status CheckOverlap(const std::string& buffer, const Layout& layout, int nranks) {
  std::vector<Part> parts;
  for (int r = 0; r < nranks; ++r) {
    if (layout.counts[r] > 0) parts.push_back({layout.offsets[r], layout.counts[r]});
  }
  std::sort(parts.begin(), parts.end(), [](const Part& left, const Part& right) { return left.begin < right.begin; });
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].begin < parts[i - 1].begin + parts[i - 1].elements)
      return Status::Invalid("two parts of " + buffer + "buf overlap at element " + std::to_string(parts[i].begin) +
                             "; see " + buffer + "offsets");
  }
  return Status();
}

// What another argument says of a rank's own part.
constexpr size_t kAnyCount = std::numeric_limits<size_t>::max();
struct OwnPart {
  size_t count = kAnyCount;  // kAnyCount: it says nothing.
  std::string name;
};

// The layout of `buffer`.
Status CheckLayout(const std::string& buffer, const Layout& layout, const OwnPart& own, size_t most, int rank,
                   int nranks) {
  const std::string counts = buffer + "counts";
  if (layout.counts == nullptr) return Status::Invalid(counts + " is null");
  size_t next = 0;
  size_t end = 0;  // Of the latest part with elements.
  bool is_in_order = true;
  for (int r = 0; r < nranks; ++r) {
    const Part part{layout.offsets != nullptr ? layout.offsets[r] : next, layout.counts[r]};
    if (part.elements > most || part.begin > most - part.elements) {
      return Status::Invalid(counts + "[" + std::to_string(r) + "] is " + std::to_string(part.elements) +
                             ", at element " + std::to_string(part.begin) + ": more than the address space holds");
    }
    next = part.begin + part.elements;
    if (part.elements == 0) continue;
    is_in_order = is_in_order && part.begin >= end;
    end = next;
  }
  if (own.count != kAnyCount && layout.counts[rank] != own.count) {
    return Status::Invalid(counts + "[" + std::to_string(rank) + "] is " + std::to_string(layout.counts[rank]) +
                           ", but " + own.name + ", for the same part, is " + std::to_string(own.count));
  }
  return is_in_order ? Status() : CheckOverlap(buffer, layout, nranks);
}

Status CheckLayouts(const CallArguments& a, size_t most, int rank, int nranks) {
  if (!HasVariableParts(a.kind)) return Status();
  const auto check_send = [&](const OwnPart& own) {
    return CheckLayout("send", a.send_layout, own, most, rank, nranks);
  };
  const auto check_recv = [&](const OwnPart& own) {
    return CheckLayout("recv", a.recv_layout, own, most, rank, nranks);
  };
  const bool sends_parts = SendHolds(a.kind, rank == a.root) == Holding::kParts;
  const bool receives_parts = RecvHolds(a.kind, rank == a.root) == Holding::kParts;
  if (sends_parts && receives_parts) {
    ANNULUS_RETURN_IF_ERROR(check_send({}));
    return check_recv({a.send_layout.counts[rank], "sendcounts[" + std::to_string(rank) + "]"});
  }
  if (sends_parts) return check_send({a.count, "recvcount"});
  return receives_parts ? check_recv({a.count, "sendcount"}) : Status();
}

// 31 bits that differ between other counts, or the same ones in another order. Of two arrays that differ in one place
// the 64 bits before the shift always do.
int32_t DigestOf(std::span<const size_t> counts) {
  uint64_t digest = 0;
  for (const size_t count : counts) digest = (std::rotl(digest, 31) ^ count) * 0x9e3779b97f4a7c15u;
  return static_cast<int32_t>(digest >> 33);
}

}  // namespace

void TellReceived(int source, int32_t tag, size_t count, annulus_received_t* out) {
  const size_t bytes = out->struct_bytes;
  const annulus_received_t full{sizeof full, source, tag, count};
  std::memset(static_cast<void*>(out), 0, bytes);
  std::memcpy(out, &full, std::min(bytes, sizeof full));
}

Status CheckArguments(const CallArguments& a, int rank, int nranks) {
  if (a.kind == CollectiveKind::kBarrier) return Status();
  const int type = static_cast<int>(a.type);
  if (type >= kNumDataTypes) return Status::Invalid("type is " + std::to_string(type) + ", which is no annulus_type_t");
  if (Reduces(a.kind)) ANNULUS_RETURN_IF_ERROR(CheckOp(a));
  if (HasRoot(a.kind) && (a.root < 0 || a.root >= nranks)) {
    return Status::Invalid("root is " + std::to_string(a.root) + "; allowed: 0 to " + std::to_string(nranks - 1));
  }
  // Only calls as data, which have options, can tell whose message came.
  const bool is_from_any =
      a.kind == CollectiveKind::kRecv && a.root == ANNULUS_ANY_PEER && a.options != nullptr && nranks > 1;
  if (IsMessage(a.kind) && !is_from_any && (a.root < 0 || a.root >= nranks || a.root == rank)) {
    return Status::Invalid("peer is " + std::to_string(a.root) + "; allowed: 0 to " + std::to_string(nranks - 1) +
                           ", and not this rank itself");
  }
  const size_t element = TypeBytes(a.type);
  const size_t most = std::numeric_limits<ptrdiff_t>::max() / element / nranks;
  if (a.count > most) {
    return Status::Invalid("count is " + std::to_string(a.count) + ", more than the address space holds for " +
                           std::to_string(nranks) + " ranks");
  }
  ANNULUS_RETURN_IF_ERROR(CheckLayouts(a, most, rank, nranks));
  const Extent extent = ExtentOf(a, element, rank, nranks);
  ANNULUS_RETURN_IF_ERROR(CheckBuffer("sendbuf", a.sendbuf, extent.send, TypeAlignment(a.type)));
  ANNULUS_RETURN_IF_ERROR(CheckBuffer("recvbuf", a.recvbuf, extent.recv, TypeAlignment(a.type)));
  return CheckOverlap(a, extent);
}

[[gnu::flatten]] bool HasGoodBuffers(const CallArguments& a, int rank, int nranks) {
  const Extent extent = ExtentOf(a, TypeBytes(a.type), rank, nranks);
  const size_t alignment = TypeAlignment(a.type);
  return IsGoodBuffer(a.sendbuf, extent.send, alignment) && IsGoodBuffer(a.recvbuf, extent.recv, alignment) &&
         !Overlap(a, extent);
}

bool AreApart(const CallArguments& send, const CallArguments& recv) {
  const size_t send_bytes = send.count * TypeBytes(send.type), recv_bytes = recv.count * TypeBytes(recv.type);
  const uintptr_t from = reinterpret_cast<uintptr_t>(send.sendbuf), to = reinterpret_cast<uintptr_t>(recv.recvbuf);
  return send_bytes == 0 || recv_bytes == 0 || from + send_bytes <= to || to + recv_bytes <= from;
}

void ForgetUnused(CallArguments* arguments, int rank, int nranks) {
  bool sends = arguments->count > 0 && SendHolds(arguments->kind, rank == arguments->root) != Holding::kNothing;
  bool receives = arguments->count > 0 && RecvHolds(arguments->kind, rank == arguments->root) != Holding::kNothing;
  if (HasVariableParts(arguments->kind)) {
    const Extent extent = ExtentOf(*arguments, TypeBytes(arguments->type), rank, nranks);
    sends = extent.send > 0;
    receives = extent.recv > 0;
  }
  if (!sends) arguments->sendbuf = nullptr;
  if (!receives) arguments->recvbuf = nullptr;
}

Call CallOf(const CallArguments& a, int nranks, uint64_t sequence) {
  Call call;
  call.sequence = sequence;
  call.kind = a.kind;
  if (a.kind == CollectiveKind::kBarrier) return call;
  call.type = a.type;
  if (!HasVariableParts(a.kind)) {
    call.count = a.count;
  } else if (!IsDirect(a.kind)) {
    const std::span<const size_t> counts = CountsOf(a, nranks);
    call.count = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
    call.root = DigestOf(counts);
  }
  if (Reduces(a.kind)) call.op = a.op;
  if (HasRoot(a.kind)) call.root = a.root;
  return call;
}

Buffers BuffersOf(const CallArguments& a) {
  return {
      {a.sendbuf, a.send_queue}, {a.recvbuf, a.recv_queue}, a.count, a.send_layout, a.recv_layout, nullptr, a.custom};
}

size_t SendBytes(const CallArguments& a, int rank, int nranks) {
  if (a.kind == CollectiveKind::kBarrier || a.kind == CollectiveKind::kRecv) return 0;
  if (a.kind == CollectiveKind::kAllreduce || a.kind == CollectiveKind::kSend) return a.count * TypeBytes(a.type);
  return ExtentOf(a, TypeBytes(a.type), rank, nranks).send;
}

}  // namespace annulus
