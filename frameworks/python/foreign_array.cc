#include "frameworks/python/foreign_array.h"

#include <annulus.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "frameworks/python/cuda_stream.h"

namespace annulus_python {

namespace py = pybind11;

namespace {

// The binary interface of DLPack 1.x, and of what went before it.
struct DlTensor {
  void* data;
  int32_t device_type;
  int32_t device;
  int32_t ndim;
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;  // In elements; null: contiguous.
  uint64_t byte_offset;
};
struct DlManaged {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManaged*);
};
struct DlManagedVersioned {
  uint32_t major;
  uint32_t minor;
  void* context;
  void (*deleter)(DlManagedVersioned*);
  uint64_t flags;
  DlTensor tensor;
};
constexpr uint64_t kReadOnly = 1;
constexpr uint64_t kIsCopied = 2;
constexpr uint32_t kMajor = 1;

struct Type {
  uint8_t code;
  uint8_t bits;
  annulus_type_t element;
};
constexpr Type kTypes[] = {
    {0, 8, ANNULUS_INT8},         {0, 32, ANNULUS_INT32},    {0, 64, ANNULUS_INT64},       {1, 8, ANNULUS_UINT8},
    {1, 32, ANNULUS_UINT32},      {1, 64, ANNULUS_UINT64},   {2, 16, ANNULUS_FLOAT16},     {2, 32, ANNULUS_FLOAT32},
    {2, 64, ANNULUS_FLOAT64},     {4, 16, ANNULUS_BFLOAT16}, {10, 8, ANNULUS_FLOAT8_E4M3}, {12, 8, ANNULUS_FLOAT8_E5M2},
    {0, 16, ANNULUS_INT16},       {1, 16, ANNULUS_UINT16},   {6, 8, ANNULUS_BOOL},         {5, 64, ANNULUS_COMPLEX64},
    {5, 128, ANNULUS_COMPLEX128},
};

int ElementOf(const DlTensor& tensor) {
  for (const Type& type : kTypes) {
    if (type.code == tensor.code && type.bits == tensor.bits && tensor.lanes == 1) return type.element;
  }
  return -1;
}

std::string NameOf(const DlTensor& tensor) {
  static constexpr const char* kCodes[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const std::string code = tensor.code < 7 ? kCodes[tensor.code] : "type " + std::to_string(tensor.code) + " of ";
  return code + std::to_string(tensor.bits) + (tensor.lanes == 1 ? "" : "x" + std::to_string(tensor.lanes));
}

bool IsContiguous(const DlTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  bool contiguous = true;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;  // No element, no stride that matters.
    contiguous &= tensor.shape[i] == 1 || tensor.strides[i] == expected;
    expected *= tensor.shape[i];
  }
  return contiguous;
}

// The content of a capsule of that name, which is the caller's from now on: the deleter goes with the result.
template <class Managed>
std::pair<const DlTensor*, py::capsule> TakeTensor(const py::capsule& capsule, const char* name, const char* used) {
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (managed == nullptr) throw py::error_already_set();
  py::capsule owner(managed, [](void* content) {
    auto* const own = static_cast<Managed*>(content);
    if (own->deleter != nullptr) own->deleter(own);
  });
  if (PyCapsule_SetName(capsule.ptr(), used) != 0) {
    owner.release();  // Still the first capsule's: better lost than freed twice.
    throw py::error_already_set();
  }
  return {&managed->tensor, std::move(owner)};
}

}  // namespace

ForeignArray::ForeignArray(uintptr_t address, std::vector<int64_t> shape, int element, bool readonly, py::object owner)
    : address_(address), shape_(std::move(shape)), element_(element), readonly_(readonly), owner_(std::move(owner)) {}

ForeignArray ForeignArray::FromDlpack(const py::capsule& capsule) {
  const char* const name = PyCapsule_GetName(capsule.ptr());
  if (name == nullptr) PyErr_Clear();
  const std::string kind = name != nullptr ? name : "";
  ForeignArray array;
  const DlTensor* tensor = nullptr;
  if (kind == "dltensor_versioned") {
    const auto* const head = static_cast<const DlManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), name));
    if (head->major != kMajor) {
      throw py::value_error("its DLPack has version " + std::to_string(head->major) + "." +
                            std::to_string(head->minor) + ", not 1.x");
    }
    // What is written to a copy is lost.
    array.readonly_ = (head->flags & (kReadOnly | kIsCopied)) != 0;
    std::tie(tensor, array.owner_) =
        TakeTensor<DlManagedVersioned>(capsule, "dltensor_versioned", "used_dltensor_versioned");
  } else if (kind == "dltensor") {
    std::tie(tensor, array.owner_) = TakeTensor<DlManaged>(capsule, "dltensor", "used_dltensor");
  } else {
    throw py::value_error("its __dlpack__ gave a capsule named '" + kind + "'");
  }
  array.address_ = reinterpret_cast<uintptr_t>(tensor->data) + tensor->byte_offset;
  array.shape_.assign(tensor->shape, tensor->shape + tensor->ndim);
  array.element_ = ElementOf(*tensor);
  array.type_name_ = NameOf(*tensor);
  array.contiguous_ = IsContiguous(*tensor);
  return array;
}

int64_t ForeignArray::size() const {
  int64_t size = 1;
  for (const int64_t extent : shape_) size *= extent;
  return size;
}

py::tuple ForeignArray::Shape() const {
  py::tuple shape(shape_.size());
  for (size_t i = 0; i < shape_.size(); ++i) shape[i] = shape_[i];
  return shape;
}

bool ForeignArray::aligned() const {
  const auto type = static_cast<annulus_type_t>(element_);
  const bool is_complex = type == ANNULUS_COMPLEX64 || type == ANNULUS_COMPLEX128;  // Aligned to a half.
  return address_ % std::max<size_t>(annulus_type_bytes(type) / (is_complex ? 2 : 1), 1) == 0;
}

py::buffer_info ForeignArray::Buffer() const {
  const auto bytes = size() * static_cast<int64_t>(annulus_type_bytes(static_cast<annulus_type_t>(element_)));
  return {reinterpret_cast<void*>(address_), 1, "B", 1, {bytes}, {int64_t{1}}, readonly_};
}

void DefineForeignArrays(py::module_* module) {
  py::class_<ForeignArray>(*module, "ForeignArray", py::buffer_protocol())
      .def(py::init<uintptr_t, std::vector<int64_t>, int, bool, py::object>())
      .def_property_readonly("shape", &ForeignArray::Shape)
      .def_property_readonly("size", &ForeignArray::size)
      .def_property_readonly("ndim", &ForeignArray::ndim)
      .def_property_readonly("address", &ForeignArray::address)
      .def_property_readonly("element", &ForeignArray::element)
      .def_property_readonly("type_name", &ForeignArray::type_name)
      .def_property_readonly("contiguous", &ForeignArray::contiguous)
      .def_property_readonly("aligned", &ForeignArray::aligned)
      .def_property_readonly("readonly", &ForeignArray::readonly)
      .def_buffer(&ForeignArray::Buffer);
  module->def("from_dlpack", &ForeignArray::FromDlpack);
  module->def("wait_for_stream", [](uintptr_t address, int device, uintptr_t stream) {
    std::string failed;
    {
      const py::gil_scoped_release release;
      failed = WaitForStream(address, device, stream);
    }
    if (!failed.empty()) throw std::runtime_error(failed);
  });
}

}  // namespace annulus_python
