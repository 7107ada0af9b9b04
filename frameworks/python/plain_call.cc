#include "frameworks/python/plain_call.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "frameworks/python/numpy_array.h"

namespace annulus_python {

namespace py = pybind11;

namespace {

// What an array holds: as much as every rank's, one rank's part of it, or the parts of all ranks.
enum class Holds { kNothing, kWhole, kPart, kParts };

// Which ranks have both arrays: all, or the root alone, where others send or receive nothing. The root of a broadcast
// has no output, and the others have nothing else.
enum class Roles { kAlike, kRootReceives, kRootSends, kBroadcast };

struct Form {
  Holds send;
  Holds recv;
  Roles roles = Roles::kAlike;
  bool has_counts = false;  // Parts may differ in length.
};

std::optional<Form> FormOf(int kind) {
  switch (kind) {
    case ANNULUS_CALL_ALLREDUCE:
      return Form{Holds::kWhole, Holds::kWhole};
    case ANNULUS_CALL_REDUCE:
      return Form{Holds::kWhole, Holds::kWhole, Roles::kRootReceives};
    case ANNULUS_CALL_BROADCAST:
      return Form{Holds::kWhole, Holds::kWhole, Roles::kBroadcast};
    case ANNULUS_CALL_ALLGATHER:
    case ANNULUS_CALL_ALLGATHERV:
      return Form{Holds::kPart, Holds::kParts, Roles::kAlike, kind == ANNULUS_CALL_ALLGATHERV};
    case ANNULUS_CALL_GATHER:
    case ANNULUS_CALL_GATHERV:
      return Form{Holds::kPart, Holds::kParts, Roles::kRootReceives, kind == ANNULUS_CALL_GATHERV};
    case ANNULUS_CALL_REDUCE_SCATTER:
    case ANNULUS_CALL_REDUCE_SCATTERV:
      return Form{Holds::kParts, Holds::kPart, Roles::kAlike, kind == ANNULUS_CALL_REDUCE_SCATTERV};
    case ANNULUS_CALL_SCATTER:
    case ANNULUS_CALL_SCATTERV:
      return Form{Holds::kParts, Holds::kPart, Roles::kRootSends, kind == ANNULUS_CALL_SCATTERV};
    case ANNULUS_CALL_ALLTOALL:
    case ANNULUS_CALL_ALLTOALLV:
      return Form{Holds::kParts, Holds::kParts, Roles::kAlike, kind == ANNULUS_CALL_ALLTOALLV};
    case ANNULUS_CALL_SEND:
      return Form{Holds::kWhole, Holds::kNothing};
    case ANNULUS_CALL_RECV:
      return Form{Holds::kNothing, Holds::kWhole};
    case ANNULUS_CALL_BARRIER:
      return Form{Holds::kNothing, Holds::kNothing};
    default:
      return std::nullopt;
  }
}

// What a rank does not use. `recv` of a broadcast's root is its own array.
struct Unused {
  bool send;
  bool recv;
};

Unused UnusedOf(const PlainCall& plain, const Form& form, const Ranks& ranks) {
  const bool is_root = static_cast<size_t>(plain.root) == ranks.own;
  switch (form.roles) {
    case Roles::kRootReceives:
      return {false, !is_root};
    case Roles::kRootSends:
      return {!is_root, false};
    case Roles::kBroadcast:
      return {!is_root, is_root};
    default:
      return {false, false};
  }
}

// Reads the counts of an array where it has any and is used.
bool ReadCounts(PyObject* given, bool has_counts, bool is_used, size_t nranks, PartCounts* room, PartCounts** counts) {
  if (!has_counts) return given == Py_None;
  if (!is_used) return true;
  *counts = room;
  return room->Read(given, nranks);
}

// Sets *rows to those of the output of a call that sends `send`. Returns false where that does not fit the call.
bool OutputRows(const PlainCall& plain, const Form& form, const Ranks& ranks, const NumpyArray& send, size_t* rows) {
  *rows = send.rows;
  if (!form.has_counts) {
    if (form.send == Holds::kParts && send.rows % ranks.count != 0) return false;
    if (form.send == Holds::kPart) *rows *= ranks.count;
    if (form.recv == Holds::kPart) *rows /= ranks.count;
    return true;
  }
  if (form.send == Holds::kParts ? plain.sendcounts == nullptr : plain.recvcounts == nullptr) return false;
  if (form.recv == Holds::kParts && plain.recvcounts == nullptr) return false;
  *rows = form.recv == Holds::kParts ? plain.recvcounts->total() : plain.sendcounts->of(ranks.own);
  return send.rows == (form.send == Holds::kParts ? plain.sendcounts->total() : plain.recvcounts->of(ranks.own));
}

// Whether the rank has the arrays that it needs, no others, and their lengths fit; either may be null.
bool Fits(const PlainCall& plain, const Form& form, const Ranks& ranks, const NumpyArray* send,
          const NumpyArray* recv) {
  if (plain.tag != 0 && plain.kind != ANNULUS_CALL_SEND && plain.kind != ANNULUS_CALL_RECV) return false;
  const Unused unused = UnusedOf(plain, form, ranks);
  if ((send != nullptr) != (form.send != Holds::kNothing && !unused.send)) return false;
  if ((recv != nullptr) != (form.recv != Holds::kNothing && !unused.recv)) return false;
  if (send == nullptr || recv == nullptr) return true;
  size_t rows = 0;
  size_t count = 0;
  return send->type == recv->type && OutputRows(plain, form, ranks, *send, &rows) &&
         !__builtin_mul_overflow(rows, send->row, &count) && count == recv->count;
}

// The call's own count: that of one rank's part.
size_t CountOf(const Form& form, const Ranks& ranks, const NumpyArray* send, const NumpyArray* recv) {
  if (form.send == Holds::kNothing && form.recv == Holds::kNothing) return 0;
  if (form.send == Holds::kParts && form.recv == Holds::kParts) return form.has_counts ? 0 : send->count / ranks.count;
  return form.recv == Holds::kPart || send == nullptr ? recv->count : send->count;
}

}  // namespace

bool Reduces(int kind) {
  return kind == ANNULUS_CALL_ALLREDUCE || kind == ANNULUS_CALL_REDUCE_SCATTER || kind == ANNULUS_CALL_REDUCE ||
         kind == ANNULUS_CALL_REDUCE_SCATTERV;
}

bool KeepUsed(const Ranks& ranks, PyObject* sendcounts, PyObject* recvcounts, PlainCounts* room, PlainCall* call) {
  const std::optional<Form> form = FormOf(call->kind);
  if (!form) return false;
  const Unused unused = UnusedOf(*call, *form, ranks);
  if (unused.send) call->send = nullptr;
  if (unused.recv) call->recv = nullptr;
  const bool sends_parts = form->has_counts && form->send == Holds::kParts;
  const bool gets_parts = form->has_counts && form->recv == Holds::kParts;
  return ReadCounts(sendcounts, sends_parts, !unused.send, ranks.count, &room->send, &call->sendcounts) &&
         ReadCounts(recvcounts, gets_parts, !unused.recv, ranks.count, &room->recv, &call->recvcounts);
}

py::object NewOutput(const PlainCall& plain, const Ranks& ranks) {
  const std::optional<Form> form = FormOf(plain.kind);
  NumpyArray send;
  size_t rows = 0;
  if (!form || form->recv == Holds::kNothing || UnusedOf(plain, *form, ranks).recv) return {};
  if (plain.send == nullptr || !Read(plain.send, false, &send)) return {};
  if (!OutputRows(plain, *form, ranks, send, &rows)) return {};
  const bool keeps_shape = form->recv == Holds::kWhole || plain.kind == ANNULUS_CALL_ALLTOALL;
  return keeps_shape ? NewLike(plain.send) : NewOfRows(plain.send, rows);
}

void PlainArrays::MoveTo(std::vector<py::object>* kept) {
  if (send_) kept->push_back(std::move(send_));
  if (recv_) kept->push_back(std::move(recv_));
}

bool PlainArrays::Describe(const PlainCall& plain, const Ranks& ranks, annulus_call_t* call) {
  const std::optional<Form> form = FormOf(plain.kind);
  NumpyArray arrays[2];
  const NumpyArray* const send = plain.send == nullptr ? nullptr : &arrays[0];
  const NumpyArray* const recv = plain.recv == nullptr ? nullptr : &arrays[1];
  if (send != nullptr && !Read(plain.send, false, &arrays[0])) return false;
  if (recv != nullptr && !Read(plain.recv, true, &arrays[1])) return false;
  if (!form || !Fits(plain, *form, ranks, send, recv)) return false;
  call->struct_bytes = sizeof *call;
  call->kind = plain.kind;
  if (plain.kind == ANNULUS_CALL_BARRIER) return true;
  call->type = (send != nullptr ? send : recv)->type;
  call->count = CountOf(*form, ranks, send, recv);
  call->sendbuf = arrays[0].data;
  call->recvbuf = arrays[1].data;
  // The root gives no output: in place its array is only read, and so may be read-only.
  if (plain.kind == ANNULUS_CALL_BROADCAST && recv == nullptr) call->recvbuf = send->data;
  if (plain.sendcounts != nullptr) call->sendcounts = plain.sendcounts->ToElements(send->row);
  if (plain.recvcounts != nullptr) call->recvcounts = plain.recvcounts->ToElements(send->row);
  call->op = static_cast<annulus_op_t>(plain.op);
  call->root = plain.root;
  call->tag = plain.tag;
  if (send != nullptr) send_ = py::reinterpret_borrow<py::object>(plain.send);
  if (recv != nullptr) recv_ = py::reinterpret_borrow<py::object>(plain.recv);
  return true;
}

}  // namespace annulus_python
