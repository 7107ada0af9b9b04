// Arrays of other libraries: their memory as a buffer that the library can be lent, and what must be known of it. They
// come as capsules of DLPack, https://dmlc.github.io/dlpack, or as numbers, of __cuda_array_interface__. Nothing here
// touches the memory, which may be a GPU's.
//
// Threads: only with Python's global lock (GIL).
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

namespace annulus_python {

class ForeignArray {
 public:
  // Takes over what a capsule "dltensor" or "dltensor_versioned" holds. Throws ValueError for others.
  static ForeignArray FromDlpack(const pybind11::capsule& capsule);
  // `element`: the type's number, as annulus.h has it. `owner` keeps the memory, which is contiguous.
  ForeignArray(uintptr_t address, std::vector<int64_t> shape, int element, bool readonly, pybind11::object owner);

  pybind11::buffer_info Buffer() const;
  pybind11::tuple Shape() const;
  int64_t size() const;
  int ndim() const { return static_cast<int>(shape_.size()); }
  uintptr_t address() const { return address_; }
  // The type's number; -1 for one that annulus.h does not have, which type_name() tells.
  int element() const { return element_; }
  const std::string& type_name() const { return type_name_; }
  bool contiguous() const { return contiguous_; }
  bool aligned() const;
  // Also where its maker cannot tell: such arrays may be constants.
  bool readonly() const { return readonly_; }

 private:
  ForeignArray() = default;

  uintptr_t address_ = 0;
  std::vector<int64_t> shape_;
  int element_ = -1;
  std::string type_name_;
  bool contiguous_ = true;
  bool readonly_ = true;
  pybind11::object owner_;  // What the memory belongs to; the capsule's content among them.
};

// Defines the class ForeignArray, from_dlpack, and wait_for_stream(address, device, stream), which raises RuntimeError.
void DefineForeignArrays(pybind11::module_* module);

}  // namespace annulus_python
