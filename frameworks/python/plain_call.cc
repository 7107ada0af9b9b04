#include "frameworks/python/plain_call.h"

#include <cstddef>
#include <utility>

#include "frameworks/python/numpy_array.h"

namespace annulus_python {

namespace py = pybind11;

namespace {

// Whether the arrays' lengths fit the kind; either may be null.
bool Fits(const PlainCall& plain, size_t size, const NumpyArray* send, const NumpyArray* recv) {
  const bool both = send != nullptr && recv != nullptr;
  if (plain.tag != 0 && plain.kind != ANNULUS_CALL_SEND && plain.kind != ANNULUS_CALL_RECV) return false;
  switch (plain.kind) {
    case ANNULUS_CALL_ALLREDUCE:
      return both && recv->count == send->count;
    case ANNULUS_CALL_ALLGATHER:
      return both && recv->count == send->count * size;
    case ANNULUS_CALL_REDUCE_SCATTER:
      // Cut along the first axis.
      return both && recv->count * size == send->count && send->rows % size == 0;
    case ANNULUS_CALL_ALLTOALL:
      return both && recv->count == send->count && send->rows % size == 0;
    // Only the root has both.
    case ANNULUS_CALL_REDUCE:
      return send != nullptr && (recv == nullptr || recv->count == send->count);
    case ANNULUS_CALL_GATHER:
      return send != nullptr && (recv == nullptr || recv->count == send->count * size);
    case ANNULUS_CALL_SCATTER:
      return recv != nullptr && (send == nullptr || (recv->count * size == send->count && send->rows % size == 0));
    case ANNULUS_CALL_BROADCAST:
      return (send != nullptr) != (recv != nullptr);
    case ANNULUS_CALL_SEND:
      return send != nullptr && recv == nullptr;
    case ANNULUS_CALL_RECV:
      return send == nullptr && recv != nullptr;
    case ANNULUS_CALL_BARRIER:
      return send == nullptr && recv == nullptr;
    default:
      return false;
  }
}

}  // namespace

bool Reduces(int kind) {
  return kind == ANNULUS_CALL_ALLREDUCE || kind == ANNULUS_CALL_REDUCE_SCATTER || kind == ANNULUS_CALL_REDUCE;
}

void PlainArrays::MoveTo(std::vector<py::object>* kept) {
  if (send_) kept->push_back(std::move(send_));
  if (recv_) kept->push_back(std::move(recv_));
}

bool PlainArrays::Describe(const PlainCall& plain, int size, annulus_call_t* call) {
  NumpyArray arrays[2];
  const NumpyArray* const send = plain.send == nullptr ? nullptr : &arrays[0];
  const NumpyArray* const recv = plain.recv == nullptr ? nullptr : &arrays[1];
  if (send != nullptr && !Read(plain.send, false, &arrays[0])) return false;
  if (recv != nullptr && !Read(plain.recv, true, &arrays[1])) return false;
  if (!Fits(plain, static_cast<size_t>(size), send, recv)) return false;
  if (send != nullptr && recv != nullptr && send->type != recv->type) return false;
  call->struct_bytes = sizeof *call;
  call->kind = plain.kind;
  if (plain.kind == ANNULUS_CALL_BARRIER) return true;
  // The count is that of one rank's part.
  const bool is_cut = plain.kind == ANNULUS_CALL_REDUCE_SCATTER || plain.kind == ANNULUS_CALL_SCATTER;
  const NumpyArray* const part = is_cut || send == nullptr ? recv : send;
  call->type = part->type;
  call->count = plain.kind == ANNULUS_CALL_ALLTOALL ? part->count / static_cast<size_t>(size) : part->count;
  call->sendbuf = arrays[0].data;
  call->recvbuf = arrays[1].data;
  // The root gives no output: in place its array is only read, and so may be read-only.
  if (plain.kind == ANNULUS_CALL_BROADCAST && recv == nullptr) call->recvbuf = send->data;
  if (Reduces(plain.kind)) {
    call->op = static_cast<annulus_op_t>(plain.number);
    call->root = plain.root;
  } else {
    call->root = plain.number;
  }
  call->tag = plain.tag;
  send_ = py::reinterpret_borrow<py::object>(plain.send);
  recv_ = py::reinterpret_borrow<py::object>(plain.recv);
  return true;
}

}  // namespace annulus_python
