#include "frameworks/python/numpy_array.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>

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

// Places in numpy's table of C functions, whose order stays: PyArray_Type and PyArray_NewFromDescr, which takes `descr`
// away.
constexpr size_t kArrayType = 2;
constexpr size_t kNewFromDescr = 94;
using NewFromDescr = PyObject* (*)(PyTypeObject* type, PyObject* descr, int ndim, const Py_intptr_t* shape,
                                   const Py_intptr_t* strides, void* data, int flags, PyObject* owner);
void** functions = nullptr;  // The table, once it was looked for.

bool HasFunctions(const py::object& array_type) {
  if (functions != nullptr) return true;
  const std::string name = py::cast<std::string>(py::module_::import("numpy").attr("__version__"));
  const char* const module = name.rfind("1.", 0) == 0 ? "numpy.core.multiarray" : "numpy._core.multiarray";
  const py::object table = py::module_::import(module).attr("_ARRAY_API");
  auto** const found = static_cast<void**>(PyCapsule_GetPointer(table.ptr(), nullptr));
  if (found == nullptr) throw py::error_already_set();
  if (found[kArrayType] != array_type.ptr()) return false;
  functions = found;
  return true;
}

const ArrayHead& HeadOf(PyObject* array) { return *reinterpret_cast<const ArrayHead*>(array); }

// Axes that an array may have in numpy 2; in numpy 1 half of them.
constexpr size_t kMostAxes = 64;

// Of numpy's own class and the element type of `array`.
py::object New(PyObject* array, int ndim, const Py_intptr_t* shape) {
  const ArrayHead& head = HeadOf(array);
  Py_INCREF(head.descr);
  const auto make = reinterpret_cast<NewFromDescr>(functions[kNewFromDescr]);
  auto* const type = static_cast<PyTypeObject*>(functions[kArrayType]);
  PyObject* const made = make(type, head.descr, ndim, shape, nullptr, nullptr, 0, nullptr);
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

template <class T>
bool Copy(const void* data, size_t count, size_t* numbers) {
  for (size_t i = 0; i < count; ++i) {
    const T number = static_cast<const T*>(data)[i];
    if (number < 0 || number > std::numeric_limits<int>::max()) return false;
    numbers[i] = static_cast<size_t>(number);
  }
  return true;
}

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
  if (!Read(made.ptr(), false, &read) || Read(made.ptr(), true, &read) || Read(made.attr("T").ptr(), false, &read))
    return false;
  if (!HasFunctions(array_type)) return false;
  const py::object like = NewLike(made.ptr());
  return Py_TYPE(like.ptr()) == reinterpret_cast<PyTypeObject*>(array_type.ptr()) && Read(like.ptr(), true, &read) &&
         read.count == 35 && read.rows == 5 && read.row == 7 && read.type == ANNULUS_UINT16;
}

py::object NewLike(PyObject* array) { return New(array, HeadOf(array).ndim, HeadOf(array).shape); }

py::object NewOfRows(PyObject* array, size_t rows) {
  const ArrayHead& head = HeadOf(array);
  std::array<Py_intptr_t, kMostAxes> shape;
  std::copy_n(head.shape, head.ndim, shape.begin());
  shape[0] = static_cast<Py_intptr_t>(rows);
  return New(array, std::max(head.ndim, 1), shape.data());
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
  read->row = 1;
  for (int axis = 1; axis < head.ndim; ++axis) read->row *= static_cast<size_t>(head.shape[axis]);
  read->rows = head.ndim == 0 ? 1 : static_cast<size_t>(head.shape[0]);
  read->count = read->rows * read->row;
  return true;
}

bool ReadNumbers(PyObject* array, size_t count, size_t* numbers) {
  if (functions == nullptr || Py_TYPE(array) != functions[kArrayType] || HeadOf(array).ndim != 1) return false;
  NumpyArray read;
  if (!Read(array, false, &read) || read.count != count) return false;
  if (read.type == ANNULUS_INT64) return Copy<int64_t>(read.data, count, numbers);
  return read.type == ANNULUS_INT32 && Copy<int32_t>(read.data, count, numbers);
}

}  // namespace annulus_python
