#include "frameworks/python/reduction.h"

#include <exception>

namespace annulus_python {

namespace py = pybind11;

int32_t Reduction::Run(const void* left, const void* right, void* out, size_t count, annulus_type_t type, void* self) {
  py::gil_scoped_acquire gil;
  Reduction* const reduction = static_cast<Reduction*>(self);
  reduction->Combine(left, right, out, count, type);
  return reduction->error_.is_none() ? 0 : 1;
}

void Reduction::Combine(const void* left, const void* right, void* out, size_t count, annulus_type_t type) {
  if (!error_.is_none()) return;
  thread_ = std::this_thread::get_id();
  try {
    const auto bytes = static_cast<py::ssize_t>(count * annulus_type_bytes(type));
    combine_(py::memoryview::from_memory(left, bytes), py::memoryview::from_memory(right, bytes),
             py::memoryview::from_memory(out, bytes), static_cast<int>(type));
  } catch (const py::error_already_set& error) {
    error_ = error.value();
  } catch (const std::exception& error) {
    error_ = py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(error.what());
  }
  thread_ = std::thread::id();
}

}  // namespace annulus_python
