#include "frameworks/python/reduction.h"

#include <exception>
#include <memory>
#include <utility>

namespace annulus_python {

namespace py = pybind11;

namespace {

using Shared = std::shared_ptr<Reduction>;

thread_local const void* t_owner = nullptr;  // Owner of the reduction that the thread is in.

// The thread is in a reduction of `owner`.
class Scope {
 public:
  explicit Scope(const void* owner) : outer_(std::exchange(t_owner, owner)) {}
  Scope(const Scope&) = delete;
  ~Scope() { t_owner = outer_; }

 private:
  const void* const outer_;
};

}  // namespace

int32_t Reduction::Run(const void* left, const void* right, void* out, size_t count, annulus_type_t type, void* self) {
  py::gil_scoped_acquire gil;
  Reduction* const reduction = static_cast<Shared*>(self)->get();
  reduction->Combine(left, right, out, count, type);
  return reduction->error_.is_none() ? 0 : 1;
}

void Reduction::Release(void* self) {
  py::gil_scoped_acquire gil;
  // The function, or the traceback of its error, may hold the last reference to the communicator.
  const Scope scope((*static_cast<Shared*>(self))->owner_);
  const std::unique_ptr<Shared> shared(static_cast<Shared*>(self));
  (*shared)->combine_ = py::none();
}

bool Reduction::RunsHere(const void* owner) { return t_owner == owner; }

void Reduction::Combine(const void* left, const void* right, void* out, size_t count, annulus_type_t type) {
  if (!error_.is_none()) return;
  const Scope scope(owner_);
  try {
    const auto bytes = static_cast<py::ssize_t>(count * annulus_type_bytes(type));
    combine_(py::memoryview::from_memory(left, bytes), py::memoryview::from_memory(right, bytes),
             py::memoryview::from_memory(out, bytes), static_cast<int>(type));
  } catch (const py::error_already_set& error) {
    error_ = error.value();
    // Kept apart from the exception until now: it shows the line of the function.
    if (error.trace()) PyException_SetTraceback(error_.ptr(), error.trace().ptr());
  } catch (const std::exception& error) {
    error_ = py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(error.what());
  }
}

}  // namespace annulus_python
