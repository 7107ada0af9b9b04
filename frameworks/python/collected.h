// Collected: classes of pybind11 whose references Python's garbage collector follows, so that it finds cycles through
// them.
//
// Threads: only with Python's global lock (GIL).
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace annulus_python {

// What is behind `object`, an instance of the class of T, if that alone holds it. Null while others hold it too, in
// C++, where the collector cannot see them: for it they are the program. Null also before and after T's life.
template <class T>
T* HeldAlone(PyObject* object) {
  auto* const instance = reinterpret_cast<pybind11::detail::instance*>(object);
  if (!instance->simple_layout || !instance->simple_holder_constructed) return nullptr;
  const auto& holder = instance->get_value_and_holder().template holder<std::shared_ptr<T>>();
  return holder.use_count() == 1 ? holder.get() : nullptr;
}

// For the py::class_ of T, whose holder is a shared_ptr. T has Visit, a traverseproc of its references but for the
// object, and Clear, which lets go of them.
template <class T>
pybind11::custom_type_setup Collected() {
  return pybind11::custom_type_setup([](PyHeapTypeObject* made) {
    PyTypeObject* const type = &made->ht_type;
    type->tp_flags |= Py_TPFLAGS_HAVE_GC;
    type->tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
      Py_VISIT(Py_TYPE(self));
      const T* const held = HeldAlone<T>(self);
      return held == nullptr ? 0 : held->Visit(visit, arg);
    };
    type->tp_clear = [](PyObject* self) {
      T* const held = HeldAlone<T>(self);
      if (held != nullptr) held->Clear();
      return 0;
    };
    type->tp_dealloc = [](PyObject* self) {
      PyObject_GC_UnTrack(self);  // pybind11 does not: what goes with T may start the collector.
      pybind11::detail::pybind11_object_dealloc(self);
    };
  });
}

}  // namespace annulus_python
