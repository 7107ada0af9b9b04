#include "frameworks/python/numpy_array.h"

#include <array>
#include <cstdint>

namespace annulus_python {

namespace py = pybind11;

namespace {

// The heads of PyArrayObject_fields and of PyArray_Descr in numpy/ndarraytypes.h, as far as numpy 1 and 2 have the
// same.
struct ArrayHead {
  PyObject_HEAD char* data;
  int ndim;
  Py_intptr_t* shape;
  Py_intptr_t* strides;
  PyObject* base;
  PyObject* descr;
  int flags;
};
struct DescrHead {
  PyObject_HEAD PyTypeObject* typeobj;
  char kind;
  char type;
  char byteorder;
  char former_flags;
  int type_num;
};

// Flags of an array. One that only warns when it is written is to get numpy's own look.
constexpr uint32_t kContiguous = 0x1;
constexpr uint32_t kAligned = 0x100;
constexpr uint32_t kWriteable = 0x400;
constexpr uint32_t kWarnsOnWrite = uint32_t{1} << 31;

// The library's types, by numpy's numbers from NPY_BOOL to NPY_DOUBLE. As C's: a long and a long long have 64 bits.
constexpr std::array kTypes = {ANNULUS_BOOL,   ANNULUS_INT8,    ANNULUS_UINT8,  ANNULUS_INT16,  ANNULUS_UINT16,
                               ANNULUS_INT32,  ANNULUS_UINT32,  ANNULUS_INT64,  ANNULUS_UINT64, ANNULUS_INT64,
                               ANNULUS_UINT64, ANNULUS_FLOAT32, ANNULUS_FLOAT64};
static_assert(sizeof(long) == 8 && sizeof(long long) == 8);
constexpr int kHalf = 23;  // NPY_HALF

annulus_type_t TypeOf(const DescrHead& descr) {
  if (descr.byteorder == '>') return ANNULUS_TYPE_LAST;  // numpy writes '=' for this machine's order.
  if (descr.type_num == kHalf) return ANNULUS_FLOAT16;
  const bool is_known = descr.type_num >= 0 && descr.type_num < static_cast<int>(kTypes.size());
  return is_known ? kTypes[static_cast<size_t>(descr.type_num)] : ANNULUS_TYPE_LAST;
}

const ArrayHead& HeadOf(PyObject* array) { return *reinterpret_cast<const ArrayHead*>(array); }

}  // namespace

bool HasKnownLayout(const py::object& array_type) {
  const py::object made = array_type(py::make_tuple(5, 7), "uint16");
  const ArrayHead& head = HeadOf(made.ptr());
  if (py::cast<size_t>(array_type.attr("__basicsize__")) < sizeof head) return false;
  const auto address = py::cast<uintptr_t>(made.attr("__array_interface__")["data"].cast<py::tuple>()[0]);
  const bool has_places = reinterpret_cast<uintptr_t>(head.data) == address && head.ndim == 2 && head.shape[0] == 5 &&
                          head.shape[1] == 7 && head.descr == made.attr("dtype").ptr();
  if (!has_places || TypeOf(*reinterpret_cast<const DescrHead*>(head.descr)) != ANNULUS_UINT16) return false;
  NumpyArray read;
  if (!Read(made.ptr(), true, &read)) return false;
  made.attr("flags").attr("writeable") = false;
  return Read(made.ptr(), false, &read) && !Read(made.ptr(), true, &read) && !Read(made.attr("T").ptr(), false, &read);
}

bool Read(PyObject* array, bool must_write, NumpyArray* read) {
  const ArrayHead& head = HeadOf(array);
  const auto flags = static_cast<uint32_t>(head.flags);
  const uint32_t wanted = kContiguous | kAligned | (must_write ? kWriteable : 0);
  const uint32_t looked_at = wanted | (must_write ? kWarnsOnWrite : 0);
  if ((flags & looked_at) != wanted) return false;
  read->type = TypeOf(*reinterpret_cast<const DescrHead*>(head.descr));
  if (read->type == ANNULUS_TYPE_LAST) return false;
  read->data = head.data;
  read->count = 1;
  for (int axis = 0; axis < head.ndim; ++axis) read->count *= static_cast<size_t>(head.shape[axis]);
  read->rows = head.ndim == 0 ? 1 : static_cast<size_t>(head.shape[0]);
  return true;
}

}  // namespace annulus_python
