#include "frameworks/python/plain_call.h"

#include <cstdint>
#include <iterator>

namespace annulus_python {

namespace {

// ANNULUS_TYPE_LAST for a type that has no format of one letter, or not the size that is usual here.
annulus_type_t TypeOf(const Py_buffer& buffer) {
  struct Row {
    char format;
    Py_ssize_t bytes;
    annulus_type_t type;
  };
  static constexpr Row kRows[] = {
      {'f', 4, ANNULUS_FLOAT32}, {'d', 8, ANNULUS_FLOAT64}, {'l', 8, ANNULUS_INT64},   {'i', 4, ANNULUS_INT32},
      {'L', 8, ANNULUS_UINT64},  {'I', 4, ANNULUS_UINT32},  {'e', 2, ANNULUS_FLOAT16}, {'b', 1, ANNULUS_INT8},
      {'B', 1, ANNULUS_UINT8},   {'h', 2, ANNULUS_INT16},   {'H', 2, ANNULUS_UINT16},  {'?', 1, ANNULUS_BOOL},
  };
  if (buffer.format == nullptr || buffer.format[0] == '\0' || buffer.format[1] != '\0') return ANNULUS_TYPE_LAST;
  for (const Row& row : kRows) {
    if (row.format == buffer.format[0]) return row.bytes == buffer.itemsize ? row.type : ANNULUS_TYPE_LAST;
  }
  return ANNULUS_TYPE_LAST;
}

bool IsAligned(const Py_buffer& buffer) {
  if (buffer.itemsize == 0) return false;  // As of a structure without members.
  return reinterpret_cast<uintptr_t>(buffer.buf) % static_cast<uintptr_t>(buffer.itemsize) == 0;
}

// Whether the buffers' lengths fit the kind; either may be null.
bool Fits(annulus_kind_t kind, Py_ssize_t size, const Py_buffer* send, const Py_buffer* recv) {
  const bool both = send != nullptr && recv != nullptr;
  switch (kind) {
    case ANNULUS_CALL_ALLREDUCE:
      return both && recv->len == send->len;
    case ANNULUS_CALL_ALLGATHER:
      return both && recv->len == send->len * size;
    case ANNULUS_CALL_REDUCE_SCATTER:
      // Cut along the first axis.
      return both && recv->len * size == send->len && (send->ndim == 0 ? 1 : send->shape[0]) % size == 0;
    case ANNULUS_CALL_BROADCAST:
      return (send != nullptr) != (recv != nullptr);
    case ANNULUS_CALL_SEND:
      return send != nullptr && recv == nullptr;
    case ANNULUS_CALL_RECV:
      return send == nullptr && recv != nullptr;
    default:
      return false;
  }
}

}  // namespace

PlainArrays::~PlainArrays() {
  for (int i = 0; i < count_; ++i) PyBuffer_Release(&buffers_[i]);
}

const Py_buffer* PlainArrays::TryToLend(PyObject* array, int flags) {
  Py_buffer* const buffer = &buffers_[count_];
  if (PyObject_GetBuffer(array, buffer, flags | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  ++count_;
  return IsAligned(*buffer) ? buffer : nullptr;
}

void PlainArrays::MoveTo(std::vector<Lent>* lent) {
  lent->reserve(std::size(buffers_));
  // Nothing but their release follows, which looks at no pointer into the moved struct.
  for (; count_ > 0; --count_) lent->emplace_back(new Py_buffer(buffers_[count_ - 1]));
}

bool PlainArrays::Describe(const PlainCall& plain, int size, annulus_call_t* call) {
  const Py_buffer* const send = plain.send == nullptr ? nullptr : TryToLend(plain.send, PyBUF_SIMPLE);
  if (send == nullptr && plain.send != nullptr) return false;
  const Py_buffer* const recv = plain.recv == nullptr ? nullptr : TryToLend(plain.recv, PyBUF_WRITABLE);
  if (recv == nullptr && plain.recv != nullptr) return false;
  if (!Fits(plain.kind, size, send, recv)) return false;
  // The count is that of one rank's part.
  const Py_buffer* const part = plain.kind == ANNULUS_CALL_REDUCE_SCATTER || send == nullptr ? recv : send;
  call->struct_bytes = sizeof *call;
  call->kind = plain.kind;
  call->type = TypeOf(*part);
  if (call->type == ANNULUS_TYPE_LAST) return false;
  if (send != nullptr && recv != nullptr && TypeOf(*send) != TypeOf(*recv)) return false;
  call->count = static_cast<size_t>(part->len / part->itemsize);
  call->sendbuf = send != nullptr ? send->buf : nullptr;
  call->recvbuf = recv != nullptr ? recv->buf : nullptr;
  // The root gives no output: in place its array is only read, and so may be read-only.
  if (plain.kind == ANNULUS_CALL_BROADCAST && recv == nullptr) call->recvbuf = send->buf;
  if (plain.kind == ANNULUS_CALL_ALLREDUCE || plain.kind == ANNULUS_CALL_REDUCE_SCATTER) {
    call->op = static_cast<annulus_op_t>(plain.number);
  } else {
    call->root = plain.number;
  }
  return true;
}

}  // namespace annulus_python
